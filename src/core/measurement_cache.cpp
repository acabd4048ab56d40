#include "dmuon/core/measurement_cache.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "dmuon/core/error.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr int64_t largest_file = int64_t{64} << 20;

Json json_of(const MeasurementKey& key) {
  Json result = Json::object();
  result.set("hardware", key.hardware);
  result.set("instruction_set", key.instruction_set);
  result.set("libraries", key.libraries);
  result.set("threads", key.threads);
  return result;
}

std::string checksum_of(const std::string& content) {
  return hash_to_hex(hash_bytes(content.data(), static_cast<int64_t>(content.size())));
}

}  // namespace

Path default_cache_directory() {
  for (const auto& [variable, below] : {std::pair{"XDG_CACHE_HOME", "dmuon"}, std::pair{"HOME", ".cache/dmuon"}})
    if (const char* value = std::getenv(variable); value && Path(value).is_absolute()) return Path(value) / below;
  return {};
}

MeasurementCache::MeasurementCache(std::string kind, MeasurementKey key, Path directory) : kind_(std::move(kind)), key_(std::move(key)) {
  if (directory.empty()) return;
  path_ = directory / text(kind_, "-", checksum_of(json_of(key_).dump()), ".json");
  entries_ = read(ignored_);
  if (!ignored_.empty()) log_warning(text("the measurement cache ", path_.string(), " is ignored and will be replaced: ", ignored_));
}

// `problem` stays empty when the file is good or absent.
MeasurementCache::Entries MeasurementCache::read(std::string& problem) const {
  std::error_code error;
  if (!std::filesystem::exists(path_, error) && !error) return {};
  Entries result;
  try {
    const Json file = parse_json(read_file(path_, largest_file), path_.string());
    if (const int64_t found = file.at("version").as_integer(); found != version) {
      problem = text("its format is version ", found, ", this program reads ", version);
      return {};
    }
    if (file.at("kind").as_string() != kind_ || file.at("key") != json_of(key_)) {
      problem = text("it was measured for ", file.at("kind").as_string(), " ", file.at("key").dump(), ", expected ", kind_, " ",
                     json_of(key_).dump());
      return {};
    }
    const Json& entries = file.at("entries");
    if (file.at("checksum").as_string() != checksum_of(entries.dump())) {
      problem = "its checksum does not fit its entries";
      return {};
    }
    for (const auto& [name, value] : entries.as_object()) result.emplace(name, value);
  } catch (const Error& failure) {
    problem = failure.what();
    return {};
  }
  return result;
}

const Json* MeasurementCache::find(std::string_view name) const {
  const auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second;
}

void MeasurementCache::set(std::string_view name, Json value) {
  changed_[std::string(name)] = value;
  entries_[std::string(name)] = std::move(value);
}

void MeasurementCache::save() {
  if (path_.empty() || changed_.empty() || unwritable_) return;
  std::string problem;  // a file that went bad meanwhile is simply replaced
  for (auto& [name, value] : read(problem))
    if (!changed_.contains(name)) entries_[name] = value;
  Json entries = Json::object();
  for (const auto& [name, value] : entries_) entries.set(name, value);
  Json file = Json::object();
  file.set("version", version);
  file.set("kind", kind_);
  file.set("key", json_of(key_));
  file.set("checksum", checksum_of(entries.dump()));
  file.set("entries", std::move(entries));
  // A name of its own for every writer, threads of one process included.
  const Path temporary = path_.string() + text(".", getpid(), "-", static_cast<const void*>(this));
  try {
    std::error_code error;
    std::filesystem::create_directories(path_.parent_path(), error);
    if (error) throw StorageError(text("cannot create ", path_.parent_path().string(), ": ", error.message()));
    OutputFile output(temporary);
    output.write(file.dump(1));
    output.close();
    std::filesystem::rename(temporary, path_, error);
    if (error) throw StorageError(text("cannot replace ", path_.string(), ": ", error.message()));
    changed_.clear();
  } catch (const StorageError& failure) {
    std::error_code error;
    std::filesystem::remove(temporary, error);
    unwritable_ = true;
    log_warning(text("the measurement cache is not kept: ", failure.what()));
  }
}

}  // namespace dmuon
