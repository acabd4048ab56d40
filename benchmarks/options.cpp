#include "options.h"

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "train/command_line.h"

namespace dmuon::bench {

int64_t integer_option(const Arguments& arguments, const std::string& name, int64_t otherwise, int64_t least, int64_t most) {
  const auto given = arguments.own.find(name);
  if (given == arguments.own.end()) return otherwise;
  std::string written = given->second;
  if (const std::string wrong = integer_between(least, most)(written); !wrong.empty()) throw ConfigError(text("--", name, ": ", wrong));
  return *whole_number(written);
}

}  // namespace dmuon::bench
