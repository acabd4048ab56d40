#include "train/command_line.h"

#include <unistd.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>

#include "dmuon/core/error.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

template <class Number>
std::optional<Number> spelled(const std::string& written) {
  const size_t plus = written.starts_with('+') && !written.starts_with("+-") ? 1 : 0;  // from_chars knows no plus sign
  Number number{};
  const char* end = written.data() + written.size();
  const auto [stopped, error] = std::from_chars(written.data() + plus, end, number);
  if (error != std::errc() || stopped != end) return std::nullopt;
  return number;
}

// As a person writes it: 0.01, 100, 1e+06.
std::string bound_text(double bound) {
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.12g", bound);
  return buffer;
}

// `range` follows "a number" or "an integer" in messages.
CLI::Validator number_check(const std::string& range, std::function<bool(double)> allowed) {
  return CLI::Validator(
      [range, allowed = std::move(allowed)](std::string& written) {
        const std::optional<double> number = finite_number(written);
        return number && allowed(*number) ? std::string() : text("expected a number ", range, ", found \"", written, "\"");
      },
      range, "number");
}

CLI::Validator integer_check(const std::string& range, int64_t least, int64_t most) {
  return CLI::Validator(
      [=](std::string& written) {
        const std::optional<int64_t> number = whole_number(written);
        if (!number || *number < least || *number > most) return text("expected an integer ", range, ", found \"", written, "\"");
        written = std::to_string(*number);  // CLI11 would read 010 as eight
        return std::string();
      },
      range, "integer");
}

// Flags that switch something off are shown by their names alone, without the value that they store.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    for (size_t at = name.find("{false}"); at != std::string::npos; at = name.find("{false}")) name.erase(at, 7);
    return name;
  }
};

void format_help(CLI::App& app, const std::shared_ptr<CLI::FormatterBase>& formatter) {
  app.formatter(formatter);
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) format_help(*command, formatter);
}

}  // namespace

std::optional<double> finite_number(const std::string& written) {
  const std::optional<double> number = spelled<double>(written);
  return number && std::isfinite(*number) ? number : std::nullopt;
}
std::optional<int64_t> whole_number(const std::string& written) { return spelled<int64_t>(written); }

CLI::Validator number_above(double bound) {
  return number_check(text("above ", bound_text(bound)), [=](double number) { return number > bound; });
}
CLI::Validator number_between(double least, double most) {
  return number_check(text("from ", bound_text(least), " to ", bound_text(most)),
                      [=](double number) { return number >= least && number <= most; });
}
CLI::Validator number_from(double least) {
  return number_check(text("of at least ", bound_text(least)), [=](double number) { return number >= least; });
}
CLI::Validator integer_between(int64_t least, int64_t most) { return integer_check(text("from ", least, " to ", most), least, most); }
CLI::Validator integer_from(int64_t least) {
  return integer_check(text("of at least ", least), least, std::numeric_limits<int64_t>::max());
}

std::optional<int> parse_command_line(CLI::App& app, int argc, char** argv) {
  app.set_version_flag("--version", "dmuon 0.1.0");
  format_help(app, std::make_shared<HelpFormatter>());
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : static_cast<int>(ExitCode::bad_input);
  }
  return std::nullopt;
}

int exit_code_of(const std::function<void()>& run) {
  try {
    run();
    return static_cast<int>(ExitCode::done);
  } catch (const Error& error) {
    log_error(text("error: ", error.what()));
    return static_cast<int>(error.exit_code());
  } catch (const std::exception& error) {
    log_error(text("error: ", error.what()));
    const bool of_files = dynamic_cast<const std::filesystem::filesystem_error*>(&error) != nullptr;
    return static_cast<int>(of_files ? ExitCode::storage : ExitCode::device);
  }
}

int run_program(CLI::App& app, int argc, char** argv, const std::function<void()>& run) {
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  return exit_code_of(run);
}

void require_writable(const Path& path) {
  if (path.empty()) return;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) throw StorageError(text("cannot write ", path.string(), ": it is a folder"));
  const Path probe = path.string() + text(".tmp-", getpid());  // as write_file_atomically names it
  { OutputFile file(probe); }
  unlink(probe.c_str());
}

}  // namespace dmuon
