// Files of one JSON object a line.
#pragma once

#include <functional>
#include <string>

#include "dmuon/core/json.h"

namespace dmuon {

// Calls `use` for every line that is not empty; `line` counts from 1. Carriage returns at the end of a line are dropped. An error of
// the configuration kind from the parser or from `use` becomes a DataError "FILE:LINE: ...".
void for_each_line(const std::string& file, const std::function<void(std::string_view content, int64_t line)>& use);
void for_each_json_line(const std::string& file, const std::function<void(const Json& object, int64_t line)>& use);

}  // namespace dmuon
