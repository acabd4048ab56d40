#include "dmuon/io/checkpoint_reader.h"

#include <algorithm>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/text.h"
#include "io/checkpoint_manifest.h"
#include "io/input_file.h"
#include "io/safetensors_format.h"

namespace dmuon {
namespace {

constexpr size_t maximum_open_files = 64;

uint64_t parse_hash(const Json& value) {
  if (const auto hash = hash_from_hex(value.as_string())) return *hash;
  throw ConfigError(text("\"", value.as_string(), "\" is not a hash"));
}

Shape parse_shape(const Json& value) {
  std::vector<int64_t> sizes;
  for (const Json& size : value.as_array()) sizes.push_back(size.as_integer());
  try {
    return Shape(std::span<const int64_t>(sizes));
  } catch (const ShapeError& failure) {
    throw ConfigError(failure.what());
  }
}

std::string describe(DType dtype, const Shape& shape) { return text(name_of(dtype), shape.to_string()); }

}  // namespace

CheckpointReader::CheckpointReader(const Path& path, CheckpointCheck check) : path_(path) {
  open_manifest();
  open_files();
  if (check == CheckpointCheck::hashes) verify_hashes();
}

void CheckpointReader::open_manifest() {
  const Path file = path_ / manifest_name;
  std::error_code error;
  if (!std::filesystem::is_directory(path_, error)) throw CheckpointError(text("no checkpoint at ", path_.string(), ": not a directory"));
  if (!std::filesystem::exists(file, error))
    throw CheckpointError(text(path_.string(), " is not a complete checkpoint: it has no ", manifest_name));
  if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(file, error)))
    throw CheckpointError(text(file.string(), " is not a regular file"));
  manifest_ = read_manifest(file);
  try {
    step_ = manifest_.at("step").as_integer();
    std::unordered_map<std::string, size_t> by_name;
    for (const Json& item : manifest_.at("files").as_array()) {
      const std::string& name = item.at("file").as_string();
      if (!is_plain_file_name(name)) throw ConfigError(text("\"", printable_name(name), "\" is not the name of a file in this directory"));
      if (!by_name.emplace(name, files_.size()).second) throw ConfigError(text("lists the file \"", name, "\" twice"));
      files_.push_back({name, item.at("bytes").as_integer(), parse_hash(item.at("hash"))});
    }
    for (const Json& item : manifest_.at("tensors").as_array()) {
      CheckpointEntry entry;
      entry.key = item.at("key").as_string();
      entry.dtype = dtype_from_name(item.at("dtype").as_string());
      entry.shape = parse_shape(item.at("shape"));
      entry.hash = parse_hash(item.at("hash"));
      entry.rank = static_cast<int>(item.at("rank").as_integer());
      const auto named = by_name.find(item.at("file").as_string());
      if (named == by_name.end()) throw ConfigError(text("tensor \"", entry.key, "\" lies in a file that is not listed"));
      entry.file = named->second;
      tensors_.push_back(std::move(entry));
    }
  } catch (const ConfigError& failure) {
    throw CheckpointError(text(file.string(), " cannot be used: ", failure.what()));
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) { return a.key < b.key; });
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (!index_.emplace(tensors_[i].key, i).second)
      throw CheckpointError(text(file.string(), " cannot be used: lists the tensor \"", tensors_[i].key, "\" twice"));
}

void CheckpointReader::open_files() {
  std::vector<size_t> listed(files_.size());  // tensors of each file
  for (const CheckpointEntry& entry : tensors_) ++listed[entry.file];
  for (size_t i = 0; i < files_.size(); ++i) {
    const Path file = path_ / files_[i].name;
    std::error_code error;
    const auto status = std::filesystem::symlink_status(file, error);
    if (!std::filesystem::exists(status)) throw CheckpointError(text(file.string(), " is missing; ", path_.string(), " is not complete"));
    if (!std::filesystem::is_regular_file(status)) throw CheckpointError(text(file.string(), " is not a regular file"));
    if (const InputFile opened(file); opened.bytes() != files_[i].bytes)
      throw CheckpointError(text(file.string(), " holds ", opened.bytes(), " bytes, the manifest says ", files_[i].bytes,
                                 opened.bytes() < files_[i].bytes ? "; it is truncated" : ""));
    if (!files_[i].name.ends_with(".safetensors")) continue;
    const SafetensorsReader reader(file);
    for (const SafetensorsEntry& found : reader.entries()) {
      const auto position = index_.find(found.name);
      if (position == index_.end() || tensors_[position->second].file != i)
        throw CheckpointError(
            text(file.string(), " holds the tensor \"", printable_name(found.name), "\", which the manifest does not list there"));
      CheckpointEntry& entry = tensors_[position->second];
      if (found.element_type != entry.dtype || found.shape != entry.shape)
        throw CheckpointError(text(file.string(), ": tensor \"", found.name, "\" is ", found.dtype, found.shape.to_string(),
                                   ", the manifest says ", describe(entry.dtype, entry.shape)));
      entry.offset = found.offset;
      entry.bytes = found.bytes;
    }
    if (reader.entries().size() != listed[i])
      for (const CheckpointEntry& entry : tensors_)
        if (entry.file == i && reader.find(entry.key) == nullptr)
          throw CheckpointError(text(file.string(), " lacks the tensor \"", entry.key, "\", which the manifest lists there"));
  }
  for (const CheckpointEntry& entry : tensors_)
    if (!files_[entry.file].name.ends_with(".safetensors"))
      throw CheckpointError(
          text((path_ / manifest_name).string(), " cannot be used: tensor \"", entry.key, "\" lies in ", files_[entry.file].name));
}

std::shared_ptr<const InputFile> CheckpointReader::open_file(size_t index) const {
  std::lock_guard lock(mutex_);
  if (const auto known = open_.find(index); known != open_.end()) return known->second;
  const Path path = path_ / files_[index].name;
  auto opened = std::make_shared<const InputFile>(path);
  if (opened->bytes() != files_[index].bytes)
    throw CheckpointError(
        text(path.string(), " changed while it was in use: ", opened->bytes(), " bytes, the manifest says ", files_[index].bytes));
  if (open_.size() >= maximum_open_files) open_.clear();  // files in use stay open through their handles
  open_.emplace(index, opened);
  return opened;
}

void CheckpointReader::verify_hashes(int part, int parts) const {
  for (size_t i = static_cast<size_t>(part); i < files_.size(); i += static_cast<size_t>(parts)) verify_file(i);
}

void CheckpointReader::verify_file(size_t index) const {
  const auto file = open_file(index);
  const uint64_t found = file->hash();
  if (found == files_[index].hash) return;
  std::string damaged;
  for (const CheckpointEntry& entry : tensors_)
    if (entry.file == index && file->hash(entry.offset, entry.bytes) != entry.hash)
      damaged += text(damaged.empty() ? "" : ", ", "\"", entry.key, "\"");
  const bool has_tensors = files_[index].name.ends_with(".safetensors");
  throw CheckpointError(text(file->path().string(), " is damaged: its content has the hash ", hash_to_hex(found), ", the manifest says ",
                             hash_to_hex(files_[index].hash),
                             !damaged.empty() ? text("; damaged tensors: ", damaged)
                             : has_tensors    ? std::string("; its tensors are whole, the damage is in its header")
                                              : std::string()));
}

const CheckpointEntry* CheckpointReader::find(std::string_view key) const {
  const auto found = index_.find(std::string(key));
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

const CheckpointEntry& CheckpointReader::at(std::string_view key) const {
  if (const CheckpointEntry* entry = find(key)) return *entry;
  std::vector<std::string> keys;
  for (const CheckpointEntry& entry : tensors_) keys.push_back(entry.key);
  const std::string close = nearest(key, keys);
  throw CheckpointError(text("checkpoint ", path_.string(), " holds no tensor \"", printable_name(key), "\"",
                             close.empty() ? std::string() : text("; the nearest is \"", close, "\"")));
}

void CheckpointReader::read_tensor(std::string_view key, int64_t offset, void* destination, int64_t bytes) const {
  const CheckpointEntry& entry = at(key);
  if (offset < 0 || bytes < 0 || offset > entry.bytes - bytes)
    throw CheckpointError(text("checkpoint ", path_.string(), ": bytes [", offset, ", ", offset, " + ", bytes, ") leave tensor \"", key,
                               "\" ", describe(entry.dtype, entry.shape), " of ", entry.bytes, " bytes"));
  open_file(entry.file)->read(entry.offset + offset, destination, bytes);
}

void CheckpointReader::read_tensor(std::string_view key, void* destination, int64_t bytes) const {
  const CheckpointEntry& entry = at(key);
  if (bytes != entry.bytes)
    throw CheckpointError(text("checkpoint ", path_.string(), ": tensor \"", key, "\" ", describe(entry.dtype, entry.shape), " holds ",
                               entry.bytes, " bytes, the destination ", bytes));
  read_tensor(key, 0, destination, bytes);
}

void CheckpointReader::check_tensors(const std::vector<ExpectedTensor>& expected, bool allow_unexpected) const {
  constexpr size_t shown = 10;
  std::vector<std::string> problems;
  std::unordered_map<std::string_view, bool> wanted;
  for (const ExpectedTensor& tensor : expected) {
    wanted.emplace(tensor.key, true);
    const CheckpointEntry* entry = find(tensor.key);
    if (entry == nullptr)
      problems.push_back(text("tensor \"", tensor.key, "\" ", describe(tensor.dtype, tensor.shape), " is missing"));
    else if (entry->dtype != tensor.dtype || entry->shape != tensor.shape)
      problems.push_back(text("tensor \"", tensor.key, "\" is ", describe(entry->dtype, entry->shape), ", the model needs ",
                              describe(tensor.dtype, tensor.shape)));
  }
  if (!allow_unexpected)
    for (const CheckpointEntry& entry : tensors_)
      if (!wanted.contains(entry.key))
        problems.push_back(text("tensor \"", entry.key, "\" ", describe(entry.dtype, entry.shape), " is not part of the model"));
  if (problems.empty()) return;
  std::string message = text("checkpoint ", path_.string(), " does not fit the model:");
  for (size_t i = 0; i < std::min(problems.size(), shown); ++i) message += text("\n  ", problems[i]);
  if (problems.size() > shown) message += text("\n  and ", problems.size() - shown, " more");
  throw CheckpointError(text(message, "\nUse the configuration it was made with, or begin anew"));
}

bool CheckpointReader::has_text(std::string_view file_name) const {
  return !file_name.ends_with(".safetensors") &&
         std::any_of(files_.begin(), files_.end(), [&](const CheckpointFile& file) { return file.name == file_name; });
}

std::string CheckpointReader::text_of(std::string_view file_name) const {
  for (size_t i = 0; i < files_.size(); ++i)
    if (files_[i].name == file_name) {
      std::string content = read_file(path_ / files_[i].name);
      if (hash_bytes(content.data(), static_cast<int64_t>(content.size())) != files_[i].hash)
        throw CheckpointError(text((path_ / files_[i].name).string(), " is damaged: its content does not have the hash of the manifest"));
      return content;
    }
  throw CheckpointError(text("checkpoint ", path_.string(), " holds no file \"", file_name, "\""));
}

Json CheckpointReader::parse_text(std::string_view file_name) const {
  try {
    return parse_json(text_of(file_name), (path_ / file_name).string());
  } catch (const ConfigError& failure) {
    throw CheckpointError(failure.what());
  }
}
Json CheckpointReader::train_state() const { return parse_text("train_state.json"); }
Json CheckpointReader::configuration() const { return parse_text("configuration.json"); }

}  // namespace dmuon
