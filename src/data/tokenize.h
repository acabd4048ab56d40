// What `dmuon_data tokenize` does: text files to token shards, in constant memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dmuon/data/token_source.h"
#include "dmuon/data/tokenizer.h"

namespace dmuon {

struct TokenizeOptions {
  std::vector<std::string> inputs;         // text files, already expanded
  std::string output;                      // prefix: PREFIX_000000.bin, ... and PREFIX.json
  TokenFormat format = TokenFormat::llmc;  // llmc (uint16 up to 65,536 ids, else uint32) or nanogpt (uint16 only)
  int64_t shard_tokens = 100'000'000;      // tokens a file; at most 2^31 - 1 for llmc
  bool overwrite = false;                  // replace an earlier output of the same prefix
  // Called about once a mebibyte of text with the bytes done and all bytes.
  std::function<void(int64_t, int64_t)> progress;
};

struct TokenizeResult {
  int64_t tokens = 0;
  std::vector<std::string> files;
  std::string manifest;
};

// Writes the shards under temporary names and renames them when all are complete and on disk; the manifest (format,
// tokens, tokenizer, files) comes last, so a manifest means a whole data set. On any error nothing new remains. DataError
// for bad text, an existing output without `overwrite`, or a vocabulary too large for the format; StorageError for the disk.
TokenizeResult tokenize_files(const TokenizeOptions& options, const Tokenizer& tokenizer);

}  // namespace dmuon
