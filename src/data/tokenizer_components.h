// The parts of a tokenizer.json around the vocabulary: what they must be for byte-level BPE, and nothing else.
#pragma once

#include <string>
#include <vector>

#include "data/added_tokens.h"
#include "dmuon/core/json.h"

namespace dmuon::tokenizer_components {

// Each throws DataError naming the component that is not implemented; `file` begins the message.

// Top-level keys, version, truncation, padding, post-processor and decoder.
void check_surroundings(const Json& file, const std::string& name);
// Whether text is composed (NFC).
bool composes(const Json& file, const std::string& name);
// The pattern that words are found by.
std::string pattern_of(const Json& file, const std::string& name);
// In the order of the file; contents are distinct.
std::vector<AddedToken> added_tokens(const Json& file, const std::string& name);
// The model's settings besides vocabulary and merges; true for ignore_merges.
bool check_model(const Json& model, const std::string& name);

}  // namespace dmuon::tokenizer_components
