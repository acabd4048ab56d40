// One long sequence of token ids, whatever holds it: text through a tokenizer, nanoGPT .bin or llm.c shards. Several
// files form one sequence in the order given. Positions are 64-bit. Immutable after opening; reading is thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dmuon/core/json.h"
#include "dmuon/data/tokenizer.h"

namespace dmuon {

// llmc: 1024-byte header of 256 int32 (magic 20240520 version 1: uint16 ids; magic 20240801 version 7: uint32 ids).
// nanogpt: raw little-endian uint16 ids without a header. text: anything a tokenizer reads.
enum class TokenFormat { text, nanogpt, llmc };
std::string_view name_of(TokenFormat format);

// A file of a source, as a checkpoint remembers it.
struct TokenFile {
  std::string name;  // as given
  int64_t bytes = 0;
  int64_t tokens = 0;
  std::string hash;  // of up to 16 blocks of 64 KiB spread evenly over the file, head and tail included
};

class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual int64_t tokens() const = 0;
  // Fills `out` with tokens [first, first + out.size()), across files. DataError if the range leaves the source or an id
  // is not below the vocabulary: then the message names file, token index and byte offset.
  virtual void read(int64_t first, std::span<int32_t> out) const = 0;
  virtual TokenFormat format() const = 0;
  virtual const std::vector<TokenFile>& files() const = 0;
};
using TokenSourceHandle = std::shared_ptr<const TokenSource>;

// Paths and glob patterns to files: the list keeps its order, the matches of one pattern are sorted by bytes, in every
// locale. DataError for a pattern without match, a directory, or a file listed twice (also through a link). `key` is
// the configuration key that messages name ("data.train").
std::vector<std::string> expand_files(std::span<const std::string> patterns, std::string_view key);

// The format all `files` share. `format` is "text", "nanogpt", "llmc" or "auto": llm.c's magic decides first, then the
// extension ".bin" means nanogpt, all else is text. DataError for foreign, byte-swapped, compressed or mixed files.
TokenFormat detect_format(std::span<const std::string> files, std::string_view format);

// Opens and validates every file before returning. Token files are mapped, not read; text is tokenized into memory at
// 1, 2 or 4 bytes an id, except with the byte tokenizer, which maps it. `tokenizer` is needed for text only. Ids are
// checked against `vocabulary_size`; 0 leaves them unchecked.
TokenSourceHandle open_tokens(std::span<const std::string> files, TokenFormat format, TokenizerHandle tokenizer, int64_t vocabulary_size);

// Tokens [first, first + count) of `source` as a source of their own.
TokenSourceHandle slice(TokenSourceHandle source, int64_t first, int64_t count);

}  // namespace dmuon
