// The parts of a tokenizer.json around the vocabulary: what they must be for byte-level BPE, and nothing else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "data/added_tokens.h"
#include "dmuon/core/error.h"
#include "dmuon/core/json.h"
#include "dmuon/core/text.h"

namespace dmuon::tokenizer_components {

// Each throws DataError naming the component that is missing, misshapen or not implemented; `name`, the file, begins the message.

// What `read` makes of the member `key` of `object`, which `where` calls by its name.
template <class Read>
decltype(auto) member(const Json& object, std::string_view key, const std::string& name, std::string_view where, Read read) {
  try {
    return read(object.at(key));
  } catch (const ConfigError& failure) {
    const bool there = object.is_object() && object.find(key) != nullptr;
    throw DataError(text(name, ": ", where, ": ", there ? text(key, ": ") : std::string(), failure.what()));
  }
}

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
