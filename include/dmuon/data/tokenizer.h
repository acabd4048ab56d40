// Text to token ids and back. A tokenizer is immutable, travels inside the checkpoint as JSON, and is identified by
// the hash of that JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/json.h"

namespace dmuon {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view name() const = 0;  // "byte", "character"
  // Ids lie in [0, vocabulary_size()).
  virtual int64_t vocabulary_size() const = 0;
  // Appends the ids of `text` to `ids`. DataError for text that has no ids; the message names `origin` (a file or
  // "prompt") and `offset` + the position inside `text`, in bytes.
  virtual void encode(std::string_view text, std::string_view origin, int64_t offset, std::vector<int32_t>& ids) const = 0;
  // Length of the longest prefix of `text` that may be encoded on its own: encoding it, then the rest together with what
  // follows, gives the same ids as encoding everything at once. This is what makes streaming possible.
  virtual size_t complete_prefix(std::string_view text) const = 0;
  // DataError names an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids) const = 0;
  virtual Json to_json() const = 0;

  std::vector<int32_t> encode(std::string_view text, std::string_view origin = "text") const;
  std::string hash() const;  // 16 hexadecimal digits
};
using TokenizerHandle = std::shared_ptr<const Tokenizer>;

// One id per byte: 256 ids, any input.
TokenizerHandle make_byte_tokenizer();
// One id per UTF-8 code point of `characters` (any order, repeats allowed), ids in code point order. DataError if empty
// or not UTF-8.
TokenizerHandle make_character_tokenizer(std::string_view characters);
// The same from the code points found in text files, read in pieces; DataError names file and byte offset of invalid UTF-8.
TokenizerHandle make_character_tokenizer_from_files(std::span<const std::string> files);
// Inverse of to_json(). DataError if the object describes no known tokenizer.
TokenizerHandle tokenizer_from_json(const Json& description);
// From a JSON file: a tokenizer's own description or the manifest that `dmuon_data tokenize` writes beside its shards.
TokenizerHandle read_tokenizer(const std::string& file);

}  // namespace dmuon
