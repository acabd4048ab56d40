// Log lines: to the terminal (rank 0 only below `warning`) and, once opened, to the run's log file. Thread-safe.
// The sink is the one process-wide object besides the signal flag.
#pragma once

#include <string>
#include <string_view>

namespace dmuon {

enum class LogLevel { debug, information, warning, error };

struct LogOptions {
  int rank = 0;
  int ranks = 1;
  LogLevel level = LogLevel::information;
  std::string file;  // empty: none; appended to
};
void configure_log(const LogOptions& options);
void log(LogLevel level, std::string_view message);
inline void log_information(std::string_view message) { log(LogLevel::information, message); }
inline void log_warning(std::string_view message) { log(LogLevel::warning, message); }
inline void log_error(std::string_view message) { log(LogLevel::error, message); }
inline void log_debug(std::string_view message) { log(LogLevel::debug, message); }

}  // namespace dmuon
