// Directories of the Hugging Face tools: config.json, and model.safetensors or shards with model.safetensors.index.json.
// Names, shapes and meaning come from the family (dmuon/nn/huggingface.h); docs/huggingface.md is the user's view.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dmuon/core/dtype.h"
#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "dmuon/io/safetensors.h"
#include "dmuon/nn/model.h"

namespace dmuon {

// What config.json says.
struct HuggingFaceModel {
  ModelFamily family;
  Json settings;                   // the keys of "model" that the directory determines
  std::vector<std::string> notes;  // for people
};

// StorageError without a readable config.json; ConfigError naming file and key for a model_type or class that no family has, for
// remote code (auto_map), quantised weights (quantization_config), and whatever the family refuses.
HuggingFaceModel read_huggingface_config(const Path& directory, const std::vector<ModelFamily>& families);
// The same from the text of the file, which `origin` names.
HuggingFaceModel parse_huggingface_config(std::string_view text, const std::string& origin, const std::vector<ModelFamily>& families);

// The safetensors files of a directory. The index is preferred over a stray model.safetensors, and its rules are strict: shards
// are plain file names in the directory, every mapped name lies in its shard, and no shard holds anything else.
class HuggingFaceFiles {
 public:
  // Opens and validates everything but the values. StorageError or CheckpointError naming the file and the broken rule.
  explicit HuggingFaceFiles(const Path& directory);

  struct Location {
    const SafetensorsReader* file = nullptr;
    const SafetensorsEntry* entry = nullptr;
  };
  const Location* find(std::string_view name) const;  // null if absent
  const std::vector<std::string>& names() const { return names_; }
  const std::vector<std::string>& notes() const { return notes_; }
  const Path& directory() const { return directory_; }
  int64_t bytes_read() const;  // from all files so far, headers included

 private:
  void open_index(const Path& index);
  void add(const std::shared_ptr<const SafetensorsReader>& file);

  Path directory_;
  std::vector<std::shared_ptr<const SafetensorsReader>> files_;
  std::unordered_map<std::string, Location> tensors_;
  std::vector<std::string> names_;  // by file, then in the order of the data
  std::vector<std::string> notes_;
};

// Values of a model's parameters, read from such files at random.
class HuggingFaceReader {
 public:
  // CheckpointError naming tensors that are missing, not expected, of another shape, or neither F32, BF16 nor F16. ConfigError if
  // layout and inventory do not describe the same model.
  HuggingFaceReader(const Path& directory, const HuggingFaceLayout& layout, const Inventory& inventory);

  // Elements [first, first + count) of a parameter as float32, exactly; rows beyond the file's (a padded vocabulary) are zero.
  // Reads what is asked for, in memory of no more than a row beyond `out`. ShapeError when the range leaves the parameter. Thread-safe.
  void read(std::string_view parameter, int64_t first, int64_t count, float* out) const;

  // A tied head that is stored as well must equal the embedding: CheckpointError naming both unless it does. Reads both once; of
  // `parts` callers that share the work, each gives its number and reads its share.
  void check_tied_copy(int part = 0, int parts = 1) const;

  int64_t bytes_read() const { return files_.bytes_read(); }

  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Source {
    HuggingFaceFiles::Location location;
    bool transposed = false;
    int64_t rows = 0, columns = 0;  // of the part
    int64_t first_row = 0;          // of the part in the tensor
    int64_t tensor_rows = 0;        // of all parts
    int64_t parameter_elements = 0;
  };
  void check_names(const HuggingFaceLayout& layout);
  std::string stored_name(const std::string& name) const;
  void add_parts(const HuggingFaceTensor& tensor, const HuggingFaceFiles::Location& location, const Inventory& inventory);

  HuggingFaceFiles files_;
  std::string removed_prefix_;  // of all names of this directory
  std::string tied_copy_, tied_to_;
  std::unordered_map<std::string, Source> sources_;
  std::vector<std::string> notes_;
};

// What is written by write_huggingface.
struct HuggingFaceExport {
  Path directory;  // must not exist
  Json config;     // without dtype
  HuggingFaceLayout layout;
  DType dtype = DType::float32;  // or bfloat16, rounded to nearest even
  int64_t shard_bytes = 5'000'000'000;
  std::vector<std::pair<std::string, std::string>> files;  // further ones: name and content
  // Elements [first, first + count) of a parameter.
  std::function<void(const std::string& parameter, int64_t first, int64_t count, float* out)> read;
};
// One file, or shards of at most shard_bytes (a larger tensor has a shard of its own) with an index. Everything is written beside
// the directory under a temporary name and renamed at the end. Memory: one tensor. ConfigError if the directory exists or an
// option is impossible; StorageError from the file system, with the temporary directory removed.
void write_huggingface(const HuggingFaceExport& request);

}  // namespace dmuon
