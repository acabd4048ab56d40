#include "data/manifest.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

namespace fs = std::filesystem;
constexpr size_t suffix_length = 11;  // "_000000.bin"

// The manifest's entry for a shard, or null if it isn't one of its files.
const Json* entry_of(const Json& manifest, const std::string& file) {
  const std::string name = fs::path(file).filename().string();
  const Json* files = manifest.is_object() ? manifest.find("files") : nullptr;
  if (files == nullptr || manifest.find("tokenizer") == nullptr) return nullptr;
  for (const Json& entry : files->as_array())
    if (entry.at("name").as_string() == name) return &entry;
  return nullptr;
}

TokenizerHandle tokenizer_beside(const std::string& file) {
  if (!file.ends_with(".bin") || file.size() < suffix_length || file[file.size() - suffix_length] != '_') return nullptr;
  const std::string manifest_file = manifest_name(file.substr(0, file.size() - suffix_length));
  std::error_code ignored;
  if (!fs::is_regular_file(manifest_file, ignored)) return nullptr;
  try {
    const Json manifest = parse_json(read_file(manifest_file), manifest_file);
    const Json* entry = entry_of(manifest, file);
    if (entry == nullptr) return nullptr;
    const int64_t listed = entry->at("bytes").as_integer(), found = static_cast<int64_t>(fs::file_size(file));
    if (listed != found)
      throw DataError(text(file, ": its manifest ", manifest_file, " lists ", listed, " bytes, found ", found,
                           "; write the shards again, or remove the manifest if it belongs to others"));
    return tokenizer_from_json(manifest.at("tokenizer"));
  } catch (const ConfigError& failure) {
    throw DataError(text("manifest ", manifest_file, ": ", failure.what(), "; write the shards again, or remove it"));
  }
}

}  // namespace

std::string shard_name(const std::string& prefix, size_t index) {
  char number[32];
  std::snprintf(number, sizeof number, "_%06zu.bin", index);
  return prefix + number;
}

std::string manifest_name(const std::string& prefix) { return prefix + ".json"; }

TokenizerHandle tokenizer_beside(std::span<const std::string> files) {
  TokenizerHandle common;
  std::string first, hash;
  for (const std::string& file : files) {
    const TokenizerHandle own = tokenizer_beside(file);
    if (!own) continue;
    if (!common) {
      common = own;
      first = file;
      hash = own->hash();
    } else if (own->hash() != hash) {
      throw DataError(text(file, ": written with another tokenizer (", own->name(), ", ", own->vocabulary_size(), " ids) than ", first,
                           " (", common->name(), ", ", common->vocabulary_size(), " ids); tokenize both with the same one"));
    }
  }
  return common;
}

}  // namespace dmuon
