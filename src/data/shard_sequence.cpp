#include "data/shard_sequence.h"

#include <algorithm>
#include <filesystem>

#include "data/manifest.h"

namespace dmuon {

namespace fs = std::filesystem;

void ShardSequence::write(std::span<const std::byte> packed) {
  while (!packed.empty()) {
    if (shards_.empty() || shards_.back()->tokens() == shard_tokens_) {
      if (!shards_.empty()) shards_.back()->close();
      shards_.push_back(std::make_unique<TokenWriter>(shard_name(prefix_, shards_.size()), format_, width_, shard_tokens_));
    }
    const int64_t room = (shard_tokens_ - shards_.back()->tokens()) * width_;
    const size_t take = std::min(packed.size(), static_cast<size_t>(room));
    shards_.back()->write(packed.first(take));
    packed = packed.subspan(take);
  }
}

void ShardSequence::close() {
  if (!shards_.empty()) shards_.back()->close();
}

std::vector<std::string> ShardSequence::publish(bool replace) {
  std::vector<std::string> names;
  for (const auto& shard : shards_) {
    shard->publish();
    names.push_back(shard->path());
  }
  std::error_code ignored;
  for (size_t i = shards_.size(); replace && fs::remove(shard_name(prefix_, i), ignored); ++i) {
  }
  return names;
}

Json ShardSequence::describe() const {
  Json files = Json::array();
  for (const auto& shard : shards_) {
    Json entry = Json::object();
    entry.set("name", fs::path(shard->path()).filename().string());
    entry.set("tokens", shard->tokens());
    entry.set("bytes", shard->bytes());
    entry.set("hash", shard->hash());
    files.push_back(std::move(entry));
  }
  return files;
}

}  // namespace dmuon
