// Text to token ids and back. A tokenizer is immutable, travels inside the checkpoint as JSON, and is identified by
// a hash. Every function may be called from several threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/json.h"

namespace dmuon {

// What text that spells a special token ("<|endoftext|>") means: plain takes it as any other text, which is right for
// documents and for users' input; parse gives the special token's id.
enum class SpecialTokens { plain, parse };

// A file as it stands in a Hugging Face directory.
struct TokenizerFile {
  std::string name, content;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view name() const = 0;  // "byte", "character", "bpe"
  // Ids lie in [0, vocabulary_size()).
  virtual int64_t vocabulary_size() const = 0;
  // Appends the ids of `text` to `ids`. DataError for text that has no ids; the message names `origin` (a file or
  // "prompt") and `offset` + the position inside `text`, in bytes.
  virtual void encode(std::string_view text, std::string_view origin, int64_t offset, std::vector<int32_t>& ids,
                      SpecialTokens policy) const = 0;
  // Length of the longest prefix of `text` that is known to stand on its own: encoding it, then the rest together with what
  // follows, gives the same ids as encoding everything at once. This is what makes streaming possible. 0: read on.
  virtual size_t complete_prefix(std::string_view text, SpecialTokens policy) const = 0;
  // Text that complete_prefix() cannot cut is streamed up to this many bytes, and refused beyond: the bound on memory.
  virtual int64_t longest_stretch() const { return int64_t{4} << 20; }
  // The bytes that the ids stand for; they may begin or end inside a UTF-8 character. DataError names an id outside the vocabulary.
  virtual std::string decode_bytes(std::span<const int32_t> ids) const = 0;
  // The same as text: where a tokenizer's text is UTF-8, bytes that form no character become U+FFFD.
  virtual std::string decode(std::span<const int32_t> ids) const { return decode_bytes(ids); }
  // The id that separates documents, if the tokenizer has one.
  virtual std::optional<int32_t> end_of_text() const { return std::nullopt; }
  // The files of a Hugging Face directory that this tokenizer was read from, byte for byte; empty where there are none.
  virtual std::vector<TokenizerFile> huggingface_files() const { return {}; }
  virtual Json to_json() const = 0;
  // 16 hexadecimal digits, equal for tokenizers that give equal ids.
  virtual std::string hash() const;

  void encode(std::string_view text, std::string_view origin, int64_t offset, std::vector<int32_t>& ids) const;  // plain
  std::vector<int32_t> encode(std::string_view text, std::string_view origin = "text", SpecialTokens policy = SpecialTokens::plain) const;
  size_t complete_prefix(std::string_view text) const { return complete_prefix(text, SpecialTokens::plain); }
};
using TokenizerHandle = std::shared_ptr<const Tokenizer>;

// One id per byte: 256 ids, any input.
TokenizerHandle make_byte_tokenizer();
// One id per UTF-8 code point of `characters` (any order, repeats allowed), ids in code point order. DataError if empty
// or not UTF-8.
TokenizerHandle make_character_tokenizer(std::string_view characters);
// The same from the code points found in text files, read in pieces; DataError names file and byte offset of invalid UTF-8.
TokenizerHandle make_character_tokenizer_from_files(std::span<const std::string> files);
// Byte-level BPE as the Hugging Face libraries store it, from a tokenizer.json, or from a directory that holds one, or
// encoder.json and vocab.bpe (also named vocab.json and merges.txt). DataError names the file and the first component that is
// not implemented, or the entry that contradicts another; ConfigError where the build has no Unicode library.
TokenizerHandle make_huggingface_tokenizer(const std::string& directory_or_file);
// The same from the contents of tokenizer.json, or of vocab.json and merges.txt; other files are kept for huggingface_files().
// `origin` begins error messages.
TokenizerHandle make_huggingface_tokenizer(std::vector<TokenizerFile> files, const std::string& origin);
// Inverse of to_json(). DataError if the object describes no known tokenizer.
TokenizerHandle tokenizer_from_json(const Json& description);
// From a JSON file (a tokenizer's own description, the manifest that `dmuon_data tokenize` writes beside its shards, or a
// Hugging Face tokenizer.json) or from a directory as of make_huggingface_tokenizer.
TokenizerHandle read_tokenizer(const std::string& file);

}  // namespace dmuon
