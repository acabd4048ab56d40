#include "dmuon/core/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return spdlog::level::debug;
    case LogLevel::information:
      return spdlog::level::info;
    case LogLevel::warning:
      return spdlog::level::warn;
    case LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

std::mutex sink_mutex;
std::shared_ptr<spdlog::logger> sink;  // the log sink: the documented exception to "no global state"

std::shared_ptr<spdlog::logger> make_sink(const LogOptions& options) {
  auto terminal = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  terminal->set_level(options.rank == 0 ? level_of(options.level) : spdlog::level::warn);
  terminal->set_pattern(options.ranks > 1 && options.rank > 0 ? text("[rank ", options.rank, "] %v") : std::string("%v"));
  std::vector<spdlog::sink_ptr> sinks{terminal};
  if (!options.file.empty()) {
    auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.file);
    file->set_pattern(options.ranks > 1 ? text("%Y-%m-%dT%H:%M:%S.%e %l [rank ", options.rank, "] %v")
                                        : std::string("%Y-%m-%dT%H:%M:%S.%e %l %v"));
    sinks.push_back(file);
  }
  auto logger = std::make_shared<spdlog::logger>("dmuon", sinks.begin(), sinks.end());
  logger->set_level(spdlog::level::debug);
  logger->flush_on(spdlog::level::info);
  return logger;
}

}  // namespace

void configure_log(const LogOptions& options) {
  std::shared_ptr<spdlog::logger> made;
  try {
    made = make_sink(options);
  } catch (const spdlog::spdlog_ex& failure) {
    throw StorageError(text("cannot open the log file ", options.file, ": ", failure.what()));
  }
  std::lock_guard lock(sink_mutex);
  sink = made;
}

void log(LogLevel level, std::string_view message) {
  std::shared_ptr<spdlog::logger> current;
  {
    std::lock_guard lock(sink_mutex);
    if (!sink) sink = make_sink({});
    current = sink;
  }
  current->log(level_of(level), spdlog::string_view_t(message.data(), message.size()));
}

}  // namespace dmuon
