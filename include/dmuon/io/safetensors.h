// The safetensors format: `u64 N (little endian) | N bytes of JSON | data`, row-major little-endian tensors.
// The reader treats the file as hostile and is stricter than the reference implementation: duplicate or unknown keys,
// holes, overlaps, trailing bytes, sizes that do not multiply out and names that look like paths are all refused, before
// any tensor memory is touched. Data is fetched by pread, so a file that shrinks while open gives an error, not SIGBUS.
// Format: https://github.com/huggingface/safetensors (README, "Format").
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dmuon/core/dtype.h"
#include "dmuon/core/file.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/shape.h"

namespace dmuon {

class InputFile;

struct SafetensorsEntry {
  std::string name;
  std::string dtype;                  // the format's spelling: "F32", "BF16", "F8_E4M3", ...
  std::optional<DType> element_type;  // empty for types that dmuon does not compute with; their bytes can still be read
  Shape shape;
  int64_t offset = 0;  // of the first byte, counted from the start of the file
  int64_t bytes = 0;
};

// The format's spelling of a dtype, and back (empty if dmuon has no such type).
std::string_view safetensors_dtype(DType dtype);
std::optional<DType> dtype_from_safetensors(std::string_view name);

using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsLimits {
  int64_t header_bytes = 100'000'000;  // the format's own limit
  int64_t tensors = 100'000;
  int64_t name_bytes = 1024;
};

class SafetensorsReader {
 public:
  // Opens and validates the whole header. CheckpointError names the file, the tensor and the broken rule; StorageError if
  // the file cannot be opened or read.
  explicit SafetensorsReader(const Path& path, const SafetensorsLimits& limits = {});

  const Path& path() const { return path_; }
  int64_t file_bytes() const { return file_bytes_; }
  int64_t bytes_read() const;                                                // from the file, the header included
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // in the order of their data
  const SafetensorsMetadata& metadata() const { return metadata_; }

  const SafetensorsEntry* find(std::string_view name) const;  // null if absent
  const SafetensorsEntry& at(std::string_view name) const;    // CheckpointError naming file and nearest name

  // Copies one whole tensor into host memory; `bytes` must be its exact size (CheckpointError otherwise).
  void read(std::string_view name, void* destination, int64_t bytes) const;
  // Copies bytes [offset, offset + bytes) of one tensor.
  void read(const SafetensorsEntry& entry, int64_t offset, void* destination, int64_t bytes) const;

 private:
  Path path_;
  std::shared_ptr<const InputFile> file_;
  int64_t file_bytes_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::unordered_map<std::string, size_t> index_;
  SafetensorsMetadata metadata_;
};

struct SafetensorsDeclaration {
  std::string name;
  DType dtype = DType::float32;
  Shape shape;
};

// Writes a file front to back in bounded memory. All tensors are declared first; their data then follows in the order of
// entries() (descending element size, then name, as the format asks). Not atomic: write into a directory or under a name
// that nobody takes for complete, and rename after close().
class SafetensorsWriter {
 public:
  // Writes the header at once. CheckpointError for duplicate or unusable names; StorageError from the file system.
  SafetensorsWriter(const Path& path, std::vector<SafetensorsDeclaration> tensors, SafetensorsMetadata metadata = {{"format", "pt"}});

  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  // The next bytes of the data, in the order of entries(); may end inside a tensor but not cross into the next one.
  void write(const void* data, int64_t bytes);
  // Makes the file durable. CheckpointError naming the first tensor whose data has not been written completely.
  void close();

  // Valid after close(): XXH3 of the whole file, and of the data of entries()[i].
  uint64_t file_hash() const { return file_hash_.digest(); }
  uint64_t tensor_hash(size_t i) const { return tensor_hashes_[i]; }
  int64_t file_bytes() const { return file_.bytes_written(); }

 private:
  void finish_tensors();  // steps over tensors that are complete, empty ones included
  void put(const void* data, int64_t bytes);

  Path path_;
  std::vector<SafetensorsEntry> entries_;  // before file_: refused declarations leave no file behind
  OutputFile file_;
  size_t current_ = 0;
  int64_t written_ = 0;  // of the current tensor
  StreamingHash file_hash_;
  std::unique_ptr<StreamingHash> tensor_hash_;
  std::vector<uint64_t> tensor_hashes_;
};

}  // namespace dmuon
