#include "dmuon/io/checkpoint_writer.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "dmuon/io/checkpoint.h"
#include "dmuon/io/checkpoint_reader.h"
#include "dmuon/io/safetensors.h"
#include "io/checkpoint_manifest.h"

namespace dmuon {
namespace {

void check_file_name(std::string_view name) {
  if (!is_plain_file_name(name) || name == manifest_name)
    throw ConfigError(text("\"", name, "\" cannot be the name of a file in a checkpoint"));
}

Json sizes_of(const Shape& shape) {
  Json sizes = Json::array();
  for (const int64_t size : shape.sizes()) sizes.push_back(size);
  return sizes;
}

// Moves aside what stands at the final name if it is not a complete checkpoint.
void clear_final_path(const Path& final_path, const std::string& run_id) {
  std::error_code error;
  if (!std::filesystem::exists(std::filesystem::symlink_status(final_path, error))) return;
  std::string problem;
  try {
    CheckpointReader reader(final_path);
  } catch (const Error& failure) {
    problem = failure.what();
  }
  if (problem.empty())
    throw CheckpointError(text("checkpoint ", final_path.string(),
                               " exists already and is complete; it is not overwritten. Use another "
                               "checkpoint directory, or move away the checkpoints after the one this run began from"));
  const Path aside = final_path.parent_path() / text("damaged-", final_path.filename().string(), "-", run_id);
  log_warning(text("moving the damaged ", final_path.string(), " aside to ", aside.string(), ": ", problem));
  rename_durably(final_path, aside);
}

}  // namespace

void check_free_space(const Path& directory, int64_t bytes) {
  std::error_code error;
  Path existing = std::filesystem::absolute(directory);
  while (!std::filesystem::exists(existing, error) && existing.has_relative_path()) existing = existing.parent_path();
  const int64_t wanted = checked_add(bytes, bytes / 20).value_or(INT64_MAX);
  const int64_t available = free_bytes(existing);
  if (bytes < 0 || wanted > available)
    throw StorageError(text("not enough space for a checkpoint in ", directory.string(), ": ", format_bytes(wanted),
                            " wanted (5 % spare included), ", format_bytes(available),
                            " free; free space there or choose another directory"));
}

CheckpointWriter::CheckpointWriter(CheckpointTarget target, CrashPoints crash) : target_(std::move(target)), crash_(std::move(crash)) {
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_';
  };
  const std::string& id = target_.run_id;
  if (id.empty() || id.size() > 100 || !std::all_of(id.begin(), id.end(), allowed))
    throw ConfigError(text("\"", id, "\" cannot be a run id: 1 to 100 letters, digits, '-' and '_'"));
  if (target_.step < 0) throw ConfigError(text("a checkpoint's step cannot be negative, found ", target_.step));
  final_ = target_.directory / checkpoint_name(target_.step);
  temporary_ = target_.directory / text(checkpoint_name(target_.step), ".tmp-", id);
}

void CheckpointWriter::begin() {
  crash_.at("before_begin");
  std::error_code error;
  std::filesystem::create_directories(target_.directory, error);
  if (!error) std::filesystem::remove_all(temporary_, error);
  if (!error) std::filesystem::create_directory(temporary_, error);
  if (error) throw StorageError(text("cannot create ", temporary_.string(), ": ", error.message()));
  crash_.at("after_begin");
}

Json CheckpointWriter::write_tensors(std::string_view file_name, const std::vector<CheckpointTensor>& tensors) {
  check_file_name(file_name);
  std::vector<SafetensorsDeclaration> declarations;
  std::unordered_map<std::string_view, const CheckpointTensor*> by_key;
  int64_t total = 0;
  for (const CheckpointTensor& tensor : tensors) {
    parse_checkpoint_key(tensor.key);  // refuses what a reader could not take apart
    declarations.push_back({tensor.key, tensor.dtype, tensor.shape});
    by_key.emplace(tensor.key, &tensor);
  }
  SafetensorsWriter writer(temporary_ / file_name, std::move(declarations));
  for (const SafetensorsEntry& entry : writer.entries()) total += entry.bytes;

  std::vector<char> buffer(static_cast<size_t>(std::min(checkpoint_chunk_bytes, total)));
  int64_t done = 0;
  for (const SafetensorsEntry& entry : writer.entries())
    for (int64_t offset = 0; offset < entry.bytes; offset += checkpoint_chunk_bytes) {
      const int64_t count = std::min(checkpoint_chunk_bytes, entry.bytes - offset);
      by_key.at(entry.name)->read(offset, buffer.data(), count);
      writer.write(buffer.data(), count);
      done += count;
      if (done >= total / 2) crash_.at("mid_tensor_file");
    }
  writer.close();
  fsync_directory(temporary_);
  crash_.at("after_tensor_file");

  Json listed = Json::array();
  for (size_t i = 0; i < writer.entries().size(); ++i) {
    const SafetensorsEntry& entry = writer.entries()[i];
    listed.push_back(Json::Object{{"key", entry.name},
                                  {"dtype", name_of(*entry.element_type)},
                                  {"shape", sizes_of(entry.shape)},
                                  {"hash", hash_to_hex(writer.tensor_hash(i))},
                                  {"rank", target_.rank}});
  }
  return Json::Object{
      {"file", file_name}, {"bytes", writer.file_bytes()}, {"hash", hash_to_hex(writer.file_hash())}, {"tensors", std::move(listed)}};
}

Json CheckpointWriter::write_text(std::string_view file_name, std::string_view content) {
  check_file_name(file_name);
  OutputFile file(temporary_ / file_name);
  file.write(content);
  file.close();
  fsync_directory(temporary_);
  crash_.at("after_state");
  const uint64_t hash = hash_bytes(content.data(), static_cast<int64_t>(content.size()));
  return Json::Object{{"file", file_name}, {"bytes", file.bytes_written()}, {"hash", hash_to_hex(hash)}, {"tensors", Json::array()}};
}

Path CheckpointWriter::publish(const std::vector<Json>& fragments, const ManifestInformation& information) {
  Json files = Json::array(), tensors = Json::array();
  std::unordered_set<std::string> file_names, keys;
  for (const Json& fragment : fragments) {
    const std::string& file = fragment.at("file").as_string();
    if (!file_names.insert(file).second) throw CheckpointError(text("two ranks wrote the checkpoint file \"", file, "\""));
    files.push_back(Json::Object{{"file", file}, {"bytes", fragment.at("bytes")}, {"hash", fragment.at("hash")}});
    for (const Json& tensor : fragment.at("tensors").as_array()) {
      const std::string& key = tensor.at("key").as_string();
      if (!keys.insert(key).second) throw CheckpointError(text("two ranks wrote the tensor \"", key, "\"; each has exactly one owner"));
      Json entry = tensor;
      entry.set("file", file);
      tensors.push_back(std::move(entry));
    }
  }
  Json manifest = Json::Object{{"format", manifest_format},
                               {"format_version", checkpoint_format_version},
                               {"step", target_.step},
                               {"run_id", target_.run_id},
                               {"ranks", information.ranks},
                               {"tokens", information.tokens},
                               {"configuration_hash", information.configuration_hash},
                               {"dataset_fingerprint", information.dataset_fingerprint}};
  for (const auto& [key, value] : information.extra.as_object()) {
    if (manifest.find(key) != nullptr || key == "files" || key == "tensors" || key == "manifest_hash")
      throw ConfigError(text("\"", key, "\" is a member of every manifest and cannot be an extra one"));
    manifest.set(key, value);
  }
  manifest.set("files", std::move(files));
  manifest.set("tensors", std::move(tensors));

  crash_.at("before_manifest");
  write_file_atomically(temporary_ / manifest_name, write_manifest(manifest));
  crash_.at("after_manifest");
  clear_final_path(final_, target_.run_id);
  crash_.at("before_rename");
  rename_durably(temporary_, final_);
  crash_.at("after_rename");
  try {
    write_file_atomically(target_.directory / "latest", text(final_.filename().string(), "\n"));
  } catch (const StorageError& failure) {
    log_warning(text("checkpoint ", final_.string(), " is saved, but the hint \"latest\" is not: ", failure.what()));
  }
  crash_.at("after_latest");
  return final_;
}

void CheckpointWriter::abandon() noexcept {
  try {
    std::error_code error;
    std::filesystem::remove_all(temporary_, error);
    if (error) log_warning(text("cannot remove the unfinished checkpoint ", temporary_.string(), ": ", error.message()));
  } catch (...) {  // out of memory: the leftover is removed at the next start
  }
}

}  // namespace dmuon
