// How a family of models is written in directories of the Hugging Face tools: config.json and the tensors of its safetensors
// files. A family states names, shapes and meaning here; dmuon/io/huggingface.h reads and writes the files.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dmuon/core/json.h"
#include "dmuon/core/shape.h"

namespace dmuon {

// Rows [in file] of one of our parameters, which are [rows, columns] or [rows] (columns 1). The parameter may have more rows:
// a padded vocabulary. Those are zero after an import and left out of an export.
struct HuggingFacePart {
  std::string parameter;
  int64_t rows = 0;
};

// One tensor of the files. The rows of its parts follow each other, in this order, along dimension 0, or, where the file keeps
// [in, out] (GPT-2's Conv1D), along dimension 1.
struct HuggingFaceTensor {
  std::string name;
  Shape shape;  // in the file
  bool transposed = false;
  std::vector<HuggingFacePart> parts;
};

struct HuggingFaceLayout {
  std::vector<HuggingFaceTensor> tensors;
  std::string optional_prefix;       // names in files may lack it: all of them, or none
  std::vector<std::string> ignored;  // constant buffers that files may hold, by exact name
  // A tied head that some files hold all the same, and the tensor it must then equal; empty: the head is not tied.
  std::string tied_copy, tied_to;
};

// config.json of one directory, read strictly: a key of null counts as absent, integers lie in [1, 2^31), and every error
// is a ConfigError naming file, key, what was found and what is possible.
class HuggingFaceConfig {
 public:
  HuggingFaceConfig(const Json& config, std::string origin);

  const Json* find(std::string_view key) const;  // null if absent or null
  int64_t integer(std::string_view key, std::optional<int64_t> otherwise = std::nullopt, int64_t largest = 0x7fffffff) const;
  double number(std::string_view key, std::optional<double> otherwise = std::nullopt) const;
  bool boolean(std::string_view key, std::optional<bool> otherwise = std::nullopt) const;
  std::string word(std::string_view key, std::optional<std::string> otherwise = std::nullopt) const;
  // Absent, or exactly `value`: anything else would change results in a way that is not implemented.
  void require(std::string_view key, const Json& value) const;
  [[noreturn]] void refuse(std::string_view key, const std::string& expected) const;

 private:
  const Json& at(std::string_view key) const;

  const Json& config_;
  std::string origin_;
};

struct HuggingFaceFamily {
  struct Architecture {
    std::string model_type;  // "qwen2"
    std::string class_name;  // "Qwen2ForCausalLM"
  };
  std::vector<Architecture> architectures;
  // Positions are computed, not learned: a run may use a shorter context than the directory's.
  bool shorter_context = false;
  // Keys of config.json that are understood or have no effect on results; others are reported.
  std::vector<std::string> known_keys;
  // The keys of "model" that the directory determines, with their values.
  std::function<Json(const HuggingFaceConfig& config)> settings;
  // config.json, without dtype and token ids, of a model with these settings; ConfigError for what transformers' class of this
  // family cannot express.
  std::function<Json(const Json& settings)> config;
  std::function<HuggingFaceLayout(const Json& settings)> layout;

  bool defined() const { return !architectures.empty(); }
};

}  // namespace dmuon
