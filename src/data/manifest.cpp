#include "data/manifest.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "data/token_writer.h"
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

// The manifest beside a file and the file's entry in it; null where there is none.
struct Listed {
  std::string manifest_file;
  Json manifest;
  Json entry;
};

Listed listed(const std::string& file) {
  if (!file.ends_with(".bin") || file.size() < suffix_length || file[file.size() - suffix_length] != '_') return {};
  Listed found{manifest_name(file.substr(0, file.size() - suffix_length)), {}, {}};
  std::error_code ignored;
  if (!fs::is_regular_file(found.manifest_file, ignored)) return {};
  found.manifest = parse_json(read_file(found.manifest_file), found.manifest_file);
  if (const Json* entry = entry_of(found.manifest, file)) found.entry = *entry;
  return found;
}

[[noreturn]] void refuse_manifest(const std::string& file, const ConfigError& failure) {
  throw DataError(text(file, ": the manifest beside it: ", failure.what(), "; write the shards again, or remove it"));
}

TokenizerHandle tokenizer_beside(const std::string& file) {
  try {
    const Listed found = listed(file);
    if (found.entry.is_null()) return nullptr;
    const int64_t wanted = found.entry.at("bytes").as_integer(), size = static_cast<int64_t>(fs::file_size(file));
    if (wanted != size)
      throw DataError(text(file, ": its manifest ", found.manifest_file, " lists ", wanted, " bytes, found ", size,
                           "; write the shards again, or remove the manifest if it belongs to others"));
    return tokenizer_from_json(found.manifest.at("tokenizer"));
  } catch (const ConfigError& failure) {
    refuse_manifest(file, failure);
  }
}

}  // namespace

std::string shard_name(const std::string& prefix, size_t index) {
  char number[32];
  std::snprintf(number, sizeof number, "_%06zu.bin", index);
  return prefix + number;
}

std::string manifest_name(const std::string& prefix) { return prefix + ".json"; }

void check_listed_hash(const std::string& file) {
  try {
    const Listed found = listed(file);
    const Json* hash = found.entry.is_object() ? found.entry.find("hash") : nullptr;
    if (hash == nullptr) return;
    if (const std::string own = file_hash(file); own != hash->as_string())
      throw DataError(text(file, ": its manifest ", found.manifest_file, " lists the hash ", hash->as_string(), ", found ", own,
                           "; the file is damaged or was replaced: write the shards again"));
  } catch (const ConfigError& failure) {
    refuse_manifest(file, failure);
  }
}

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
