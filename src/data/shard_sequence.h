// Ids cut into files of equal numbers of tokens, with their manifest.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "data/token_writer.h"

namespace dmuon {

class ShardSequence {
 public:
  // Files PREFIX_000000.bin, ... of `shard_tokens` ids of `width` bytes.
  ShardSequence(std::string prefix, TokenFormat format, int width, int64_t shard_tokens)
      : prefix_(std::move(prefix)), format_(format), width_(width), shard_tokens_(shard_tokens) {}

  void write(std::span<const std::byte> packed);
  // All files complete on disk, under temporary names.
  void close();
  // Gives the files their names and returns these. With `replace`, files of an earlier run that had more of them are removed.
  std::vector<std::string> publish(bool replace);
  // [{"name", "tokens", "bytes", "hash"}], after close().
  Json describe() const;

 private:
  std::string prefix_;
  TokenFormat format_;
  int width_;
  int64_t shard_tokens_;
  std::vector<std::unique_ptr<TokenWriter>> shards_;
};

}  // namespace dmuon
