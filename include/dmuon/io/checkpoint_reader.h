// Loading a complete checkpoint: everything is proven against the manifest before the first tensor is handed out.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "dmuon/core/shape.h"
#include "dmuon/io/checkpoint.h"
#include "dmuon/io/safetensors.h"

namespace dmuon {

class InputFile;

struct CheckpointFile {
  std::string name;
  int64_t bytes = 0;
  uint64_t hash = 0;
};

struct CheckpointEntry {
  std::string key;
  DType dtype = DType::float32;
  Shape shape;
  uint64_t hash = 0;
  int rank = 0;        // that wrote it
  size_t file = 0;     // index into files()
  int64_t offset = 0;  // of the first byte in that file
  int64_t bytes = 0;
};

// What a model needs to find.
struct ExpectedTensor {
  std::string key;
  DType dtype = DType::float32;
  Shape shape;
};

class CheckpointReader {
 public:
  // `path` is a step directory. CheckpointError names the file, and the tensor, that is missing, truncated, damaged, foreign
  // or from a newer version. With CheckpointCheck::hashes (the default) every byte is read once; ranks that share the work
  // open with `sizes` and call verify_hashes with their part.
  explicit CheckpointReader(const Path& path, CheckpointCheck check = CheckpointCheck::hashes);

  // Hashes every file whose index i has i % parts == part.
  void verify_hashes(int part = 0, int parts = 1) const;

  const Path& path() const { return path_; }
  int64_t step() const { return step_; }
  const Json& manifest() const { return manifest_; }  // run_id, ranks, tokens, configuration_hash, dataset_fingerprint, ...
  const std::vector<CheckpointFile>& files() const { return files_; }
  const std::vector<CheckpointEntry>& tensors() const { return tensors_; }  // by key

  const CheckpointEntry* find(std::string_view key) const;  // null if absent
  const CheckpointEntry& at(std::string_view key) const;    // CheckpointError naming the key and the nearest one

  // Copies bytes [offset, offset + bytes) of a tensor into host memory. Thread-safe.
  void read_tensor(std::string_view key, int64_t offset, void* destination, int64_t bytes) const;
  // The whole tensor; `bytes` must be its size.
  void read_tensor(std::string_view key, void* destination, int64_t bytes) const;

  // CheckpointError listing tensors that are missing, of another shape or dtype (both named), and, unless `allow_unexpected`,
  // those that nobody expects.
  void check_tensors(const std::vector<ExpectedTensor>& expected, bool allow_unexpected = false) const;

  // A text of the checkpoint, its hash verified. CheckpointError if there is no such file.
  bool has_text(std::string_view file_name) const;
  std::string text_of(std::string_view file_name) const;
  Json train_state() const;    // train_state.json
  Json configuration() const;  // configuration.json

 private:
  void open_manifest();
  void open_files();
  std::shared_ptr<const InputFile> open_file(size_t index) const;
  void verify_file(size_t index) const;
  Json parse_text(std::string_view file_name) const;

  Path path_;
  int64_t step_ = 0;
  Json manifest_;
  std::vector<CheckpointFile> files_;
  std::vector<CheckpointEntry> tensors_;
  std::unordered_map<std::string, size_t> index_;

  // Open files, bounded: a checkpoint of a thousand ranks has more files than a process may hold open.
  mutable std::mutex mutex_;
  mutable std::unordered_map<size_t, std::shared_ptr<const InputFile>> open_;
};

}  // namespace dmuon
