#include "train/json_lines.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

namespace {

// Within a line the parser's place is ":1:COLUMN: ..."; in the file it is FILE:LINE:COLUMN.
Json parse_line(std::string_view content, const std::string& file, int64_t line) {
  try {
    return parse_json(content, "");
  } catch (const ConfigError& error) {
    const std::string_view what = error.what();
    throw DataError(text(file, ":", line, what.starts_with(":1:") ? what.substr(2) : what));
  }
}

}  // namespace

void for_each_line(const std::string& file, const std::function<void(std::string_view, int64_t)>& use) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw DataError(text("cannot open ", file, ": ", std::strerror(errno)));
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.empty()) continue;
    try {
      use(line, number);
    } catch (const ConfigError& error) {
      throw DataError(text(file, ":", number, ": ", error.what()));
    }
  }
  if (in.bad()) throw StorageError(text("cannot read ", file));
}

void for_each_json_line(const std::string& file, const std::function<void(const Json&, int64_t)>& use) {
  for_each_line(file, [&](std::string_view content, int64_t line) {
    const Json value = parse_line(content, file, line);
    if (!value.is_object()) throw ConfigError(text("expected a JSON object, found ", value.type_name()));
    use(value, line);
  });
}

}  // namespace dmuon
