// Prompts: from a file, and as tokens.
#pragma once

#include <string>
#include <vector>

#include "dmuon/data/tokenizer.h"

namespace dmuon {

// One prompt a line: as it stands, or, in a file whose name ends in ".jsonl", the string "prompt" of a JSON object. Empty lines are
// passed over. DataError names file and line of what is not JSON, not an object or without that string, and a file without prompts.
std::vector<std::string> read_prompts(const std::string& file);

// An empty prompt begins as documents do: after the end of another one, or, where the tokenizer has no such token, after a line.
// Errors are the tokenizer's and name `origin`.
std::vector<int32_t> encode_prompt(const std::string& prompt, const std::string& origin, const Tokenizer& tokenizer, SpecialTokens special);

}  // namespace dmuon
