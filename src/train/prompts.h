// Prompts of dmuon_generate from a file.
#pragma once

#include <string>
#include <vector>

namespace dmuon {

// One prompt a line: as it stands, or, in a file whose name ends in ".jsonl", the string "prompt" of a JSON object. Empty lines are
// passed over. DataError names file and line of what is not JSON, not an object or without that string, and a file without prompts.
std::vector<std::string> read_prompts(const std::string& file);

}  // namespace dmuon
