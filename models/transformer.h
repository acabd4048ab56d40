// What the families of decoder-only transformers share: units and the orders of their use, the residual stream between
// blocks, checks of inputs, and reading of settings.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "dmuon/nn/model.h"

namespace dmuon {

// Standard deviation of the initial weights of a layer with `in` inputs; projections that write to the residual stream divide
// it by sqrt(2 layers). Embeddings and head always have initializer_deviation.
enum class MatrixInitializer : uint8_t {
  fixed,  // initializer_deviation
  fan_in  // 1 / sqrt(in): outputs of about the size of the inputs at any width
};

// The units of a model, in this order: "token_embedding" (tied head only: used by the embedding and by the head), "embedding",
// "blocks.0" ..., "head". A family may leave "embedding" out where the token table is all there is (embedding == token).
struct TransformerUnits {
  bool tied = true;
  int token = 0, embedding = 0, head = 0;  // without a tie token == embedding
  std::vector<int> blocks;

  // The tied table is used around the embedding and inside the head.
  std::vector<int> forward_order() const;
  std::vector<int> backward_order() const;
};

// The residual stream between blocks: `branch` is still to be added to `sum`, by the norm that comes next; undefined before
// the first block.
struct ResidualStream {
  Variable sum, branch;
};

// Runs the body of one block in the scope of its unit; with `recompute` and a tape, recomputed in the backward.
using BlockBody = std::function<ResidualStream(ExecutionContext&, ResidualStream)>;
ResidualStream run_block(ExecutionContext& context, UnitListener* listener, int unit, bool recomputes, ResidualStream residual,
                         const BlockBody& body);

// The last position of every sequence: [B, T, C] -> [B, 1, C]. ShapeError while recording.
Variable last_position(ExecutionContext& context, const Variable& x);

// ShapeError, beginning with `family`, unless tokens and positions are alike and not empty, the cache is of `layers` layers,
// and all positions fit into the context.
void check_model_inputs(const char* family, const Tensor& tokens, const Tensor& positions, const ModelCache* cache, size_t layers,
                        int64_t context_length);

// Caches of `columns` = key heads x head width in the dtype of the inventory's values; float32 while they have no memory.
ModelCache make_attention_caches(const Inventory& inventory, Backend& backend, size_t layers, int64_t batch, int64_t capacity,
                                 int64_t columns);

// Elements of all parameters of role matrix.
int64_t matrix_elements(const Inventory& inventory);

// Members of the resolved "model" object; an absent key gives `fallback`. ConfigError names the key.
int64_t positive_setting(const Json& settings, const char* key, int64_t fallback);
// 0 (or absence) stands for `otherwise`.
int64_t size_setting(const Json& settings, const char* key, int64_t otherwise);
double number_setting(const Json& settings, const char* key, double fallback, double lowest, double below);
bool flag_setting(const Json& settings, const char* key, bool fallback);
MatrixInitializer initializer_setting(const Json& settings, MatrixInitializer fallback);

template <class T>
using Choices = std::vector<std::pair<std::string, T>>;
// The error of a name that is not among `names`.
[[noreturn]] void refuse_choice(const char* key, const std::string& found, const std::vector<std::string>& names);

template <class T>
T choice_setting(const Json& settings, const char* key, T fallback, const Choices<T>& choices) {
  const Json* value = settings.find(key);
  if (value == nullptr) return fallback;
  std::vector<std::string> names;
  for (const auto& [name, choice] : choices) {
    if (value->as_string() == name) return choice;
    names.push_back(name);
  }
  refuse_choice(key, value->as_string(), names);
}

}  // namespace dmuon
