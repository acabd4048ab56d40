#include "data/tokenize.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "data/manifest.h"
#include "data/text_reader.h"
#include "data/token_writer.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

namespace fs = std::filesystem;

// Shards of an earlier run, numbered without a gap.
std::vector<std::string> existing_shards(const std::string& prefix) {
  std::vector<std::string> names;
  for (size_t i = 0; fs::exists(shard_name(prefix, i)); ++i) names.push_back(shard_name(prefix, i));
  return names;
}

int id_width(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  const bool narrow = tokenizer.vocabulary_size() <= 65536;
  if (options.format == TokenFormat::text) throw ConfigError("tokens are written as llmc or nanogpt, not as text");
  if (options.format == TokenFormat::nanogpt && !narrow)
    throw DataError(text("the ", tokenizer.name(), " tokenizer has ", tokenizer.vocabulary_size(),
                         " ids, nanoGPT's uint16 files hold ids below 65536; write llmc shards instead"));
  return narrow ? 2 : 4;
}

// Cuts the stream of ids into files.
class ShardSequence {
 public:
  ShardSequence(const TokenizeOptions& options, int width) : options_(options), width_(width) {}

  void write(std::span<const int32_t> ids) {
    while (!ids.empty()) {
      if (shards_.empty() || shards_.back()->tokens() == options_.shard_tokens) {
        if (!shards_.empty()) shards_.back()->close();
        shards_.push_back(std::make_unique<TokenWriter>(shard_name(options_.output, shards_.size()), options_.format, width_));
      }
      const int64_t room = options_.shard_tokens - shards_.back()->tokens();
      const size_t take = std::min(ids.size(), static_cast<size_t>(room));
      shards_.back()->write(ids.first(take));
      ids = ids.subspan(take);
    }
  }
  void close() {
    if (!shards_.empty()) shards_.back()->close();
  }
  const std::vector<std::unique_ptr<TokenWriter>>& shards() const { return shards_; }

 private:
  const TokenizeOptions& options_;
  int width_;
  std::vector<std::unique_ptr<TokenWriter>> shards_;
};

Json manifest_of(const TokenizeOptions& options, const Tokenizer& tokenizer, const ShardSequence& sequence, int width, int64_t tokens) {
  Json files = Json::array();
  for (const auto& shard : sequence.shards()) {
    Json entry = Json::object();
    entry.set("name", fs::path(shard->path()).filename().string());
    entry.set("tokens", shard->tokens());
    entry.set("bytes", shard->bytes());
    files.push_back(std::move(entry));
  }
  Json sources = Json::array();
  for (const std::string& input : options.inputs) sources.push_back(fs::path(input).filename().string());
  Json manifest = Json::object();
  manifest.set("format", name_of(options.format));
  manifest.set("bytes_per_token", width);
  manifest.set("tokens", tokens);
  manifest.set("vocabulary_size", tokenizer.vocabulary_size());
  manifest.set("files", std::move(files));
  manifest.set("sources", std::move(sources));
  manifest.set("tokenizer", tokenizer.to_json());
  return manifest;
}

}  // namespace

TokenizeResult tokenize_files(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  const int width = id_width(options, tokenizer);
  const int64_t most = options.format == TokenFormat::llmc ? INT32_MAX : INT64_MAX / 2;
  if (options.shard_tokens < 1 || options.shard_tokens > most)
    throw ConfigError(text("a shard of ", options.shard_tokens, " tokens; expected 1 to ", most));
  TokenizeResult result;
  result.manifest = manifest_name(options.output);
  const std::vector<std::string> old = existing_shards(options.output);
  if (!options.overwrite)
    for (const std::string& name : {result.manifest, shard_name(options.output, 0)})
      if (fs::exists(name)) throw DataError(text(name, " exists already; choose another --output, or pass --overwrite to replace it"));
  if (const fs::path parent = fs::path(options.output).parent_path(); !parent.empty()) {
    std::error_code failure;
    fs::create_directories(parent, failure);
    if (failure) throw StorageError(text("cannot create the directory ", parent.string(), ": ", failure.message()));
  }

  int64_t total = 0, before = 0;
  for (const std::string& input : options.inputs) total += static_cast<int64_t>(fs::file_size(input));
  ShardSequence sequence(options, width);
  std::vector<int32_t> ids;
  for (const std::string& input : options.inputs) {
    read_text(
        input, [&](std::string_view piece) { return tokenizer.complete_prefix(piece); },
        [&](std::string_view piece, int64_t offset) {
          ids.clear();
          tokenizer.encode(piece, input, offset, ids);
          sequence.write(ids);
          result.tokens += static_cast<int64_t>(ids.size());
          if (options.progress) options.progress(before + offset + static_cast<int64_t>(piece.size()), total);
        });
    before += static_cast<int64_t>(fs::file_size(input));
  }
  sequence.close();
  if (result.tokens == 0) throw DataError(text(join(options.inputs, ", "), ": no text to tokenize"));

  std::error_code ignored;
  fs::remove(result.manifest, ignored);  // from here until the new one is written, no manifest vouches for the files
  for (const auto& shard : sequence.shards()) {
    shard->publish();
    result.files.push_back(shard->path());
  }
  for (size_t i = result.files.size(); i < old.size(); ++i) fs::remove(old[i], ignored);
  write_file_atomically(result.manifest, manifest_of(options, tokenizer, sequence, width, result.tokens).dump(2) + "\n");
  return result;
}

}  // namespace dmuon
