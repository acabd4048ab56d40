#include <algorithm>
#include <map>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/io/huggingface.h"
#include "io/safetensors_format.h"

namespace dmuon {
namespace {

constexpr int64_t largest_index = 64 << 20;

// What is wrong with the name of a shard; empty: nothing.
std::string shard_name_problem(const std::string& name) {
  if (name.empty()) return "is empty";
  if (name.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) return "leaves the directory or holds a NUL";
  if (name.find("..") != std::string::npos) return "holds \"..\"";
  if (!name.ends_with(".safetensors")) return "does not end in .safetensors";
  return tensor_name_problem(name, 255);
}

// Exists, whatever it is: opening decides what is wrong with it.
bool is_there(const Path& path) {
  std::error_code ignored;
  return std::filesystem::symlink_status(path, ignored).type() != std::filesystem::file_type::not_found;
}

}  // namespace

HuggingFaceFiles::HuggingFaceFiles(const Path& directory) : directory_(directory) {
  const Path single = directory / "model.safetensors", index = directory / "model.safetensors.index.json";
  if (is_there(index)) {
    open_index(index);
    if (is_there(single) && std::none_of(files_.begin(), files_.end(), [&](const auto& file) { return file->path() == single; }))
      notes_.push_back(text(index.string(), " is used; model.safetensors beside it is not"));
    return;
  }
  if (!is_there(single))
    throw CheckpointError(text(directory.string(), " holds neither model.safetensors nor model.safetensors.index.json",
                               is_there(directory / "pytorch_model.bin") || is_there(directory / "pytorch_model.bin.index.json")
                                   ? "; pickled weights (pytorch_model.bin) are not read, save them with safe_serialization=True"
                                   : ""));
  add(std::make_shared<SafetensorsReader>(single));
}

void HuggingFaceFiles::add(const std::shared_ptr<const SafetensorsReader>& file) {
  files_.push_back(file);
  for (const SafetensorsEntry& entry : file->entries()) {
    names_.push_back(entry.name);
    tensors_.emplace(entry.name, Location{file.get(), &entry});
  }
}

void HuggingFaceFiles::open_index(const Path& index) {
  const auto refuse = [&](const std::string& problem) { throw CheckpointError(text(index.string(), ": ", problem)); };
  Json json;
  try {
    json = parse_json(read_file(index, largest_index), index.string(), {64, 1'000'000});
  } catch (const ConfigError& failure) {
    throw CheckpointError(failure.what());
  }
  const Json* map = json.is_object() ? json.find("weight_map") : nullptr;
  if (map == nullptr || !map->is_object()) refuse("holds no object \"weight_map\"");
  if (map->as_object().empty()) refuse("its weight_map is empty");
  std::map<std::string, std::vector<std::string>> shards;  // shard -> names
  for (const auto& [name, shard] : map->as_object()) {
    if (!shard.is_string()) refuse(text("tensor \"", printable_name(name), "\": expected the name of a file, found ", shard.type_name()));
    if (const std::string problem = shard_name_problem(shard.as_string()); !problem.empty())
      refuse(text("tensor \"", printable_name(name), "\": the shard's name \"", printable_name(shard.as_string()), "\" ", problem));
    shards[shard.as_string()].push_back(name);
  }
  for (const auto& [shard, names] : shards)
    if (!is_there(directory_ / shard))
      refuse(text("shard ", shard, " is missing; tensor \"", printable_name(names.front()), "\" would be in it"));
  int64_t bytes = 0;
  for (const auto& [shard, names] : shards) {
    const auto file = std::make_shared<const SafetensorsReader>(directory_ / shard);
    for (const std::string& name : names)
      if (file->find(name) == nullptr)
        refuse(text("shard ", shard, " does not hold tensor \"", printable_name(name), "\", which the index puts there"));
    for (const SafetensorsEntry& entry : file->entries()) {
      const Json* mapped = map->find(entry.name);
      if (mapped == nullptr || mapped->as_string() != shard)
        refuse(text("shard ", shard, " holds tensor \"", printable_name(entry.name), "\", which the index ",
                    mapped ? text("puts into ", mapped->as_string()) : std::string("does not know")));
      bytes = checked_add(bytes, entry.bytes).value_or(bytes);
    }
    add(file);
  }
  if (const Json* metadata = json.find("metadata"); metadata != nullptr && metadata->is_object())
    if (const Json* total = metadata->find("total_size"); total != nullptr && total->is_number())
      if (total->as_number() != static_cast<double>(bytes))
        notes_.push_back(text(index.string(), ": total_size is ", total->dump(), ", the tensors hold ", bytes, " bytes"));
}

int64_t HuggingFaceFiles::bytes_read() const {
  int64_t bytes = 0;
  for (const auto& file : files_) bytes += file->bytes_read();
  return bytes;
}

const HuggingFaceFiles::Location* HuggingFaceFiles::find(std::string_view name) const {
  const auto found = tensors_.find(std::string(name));
  return found == tensors_.end() ? nullptr : &found->second;
}

}  // namespace dmuon
