// The Qwen family: Qwen2 and Qwen2.5 (biases on query, key and value; grouped queries) and Qwen3 (a head width of its own, a
// root mean square norm of every query and key head, no biases), from one description. Pre-norm blocks, RMSNorm, rotary
// positions in half-split form, SwiGLU, no dropout.
//
// Names, with C = width, H = heads, G = key_value_heads, D = head_width, F = feed_forward_width:
//   embedding.token.weight [V, C]
//   blocks.N.attention_norm.weight [C]
//   blocks.N.attention.query.{weight [H D, C], bias}, blocks.N.attention.{key,value}.{weight [G D, C], bias}
//   blocks.N.attention.{query_norm,key_norm}.weight [D], blocks.N.attention.output.weight [C, H D]
//   blocks.N.mlp_norm.weight [C], blocks.N.mlp.{gate,up}.weight [F, C], blocks.N.mlp.down.weight [C, F]
//   final_norm.weight [C], head.weight [V, C] (untied)
// Units, in this order: "token_embedding" (tied head: used by the embedding and by the head) or "embedding", "blocks.0" ...,
// "head".
//
// Between units travel the residual sum and the last branch, as in gpt2.h.
#pragma once

#include "dmuon/nn/layers.h"
#include "models/transformer.h"

namespace dmuon {

struct QwenSettings {
  int64_t layers = 24;
  int64_t heads = 14;
  int64_t key_value_heads = 2;  // G divides H
  int64_t head_width = 64;      // even
  int64_t width = 896;
  int64_t feed_forward_width = 4864;
  int64_t context_length = 32768;
  int64_t vocabulary_size = 151936;
  int64_t vocabulary_multiple = 1;  // rows of the token embedding and columns of the logits are padded to a multiple
  double rotary_base = 10000.0;     // theta of the rotary frequencies
  double normalization_epsilon = 1e-5;
  bool attention_bias = true;
  bool query_key_normalization = false;
  bool tied_head = true;
  MatrixInitializer initializer = MatrixInitializer::fixed;
  double initializer_deviation = 0.02;

  // From the resolved "model" object; absent keys keep their defaults, but key_value_heads, head_width and feed_forward_width
  // follow from heads and width (as many, width / heads, 4 width). ConfigError names the key, or the keys that do not fit
  // together.
  static QwenSettings from_json(const Json& settings);
  int64_t padded_vocabulary() const;
};

class Qwen final : public Model {
 public:
  explicit Qwen(const QwenSettings& settings);

  const Inventory& inventory() const override { return inventory_; }
  ModelFacts facts() const override;
  std::vector<int> forward_order() const override { return units_.forward_order(); }
  std::vector<int> backward_order() const override { return units_.backward_order(); }
  Variable forward(ExecutionContext& context, const Tensor& tokens, const Tensor& positions, ModelCache* cache = nullptr,
                   bool last_only = false) override;
  ModelCache make_cache(Backend& backend, int64_t batch, int64_t capacity) const override;

 private:
  struct Block {
    NormalizationLayer attention_norm, mlp_norm;
    LinearLayer query, key, value, output, gate, up, down;
    Variable query_norm, key_norm;  // undefined without query_key_normalization
  };

  Variable embed(ExecutionContext& context, const Tensor& tokens) const;
  ResidualStream block_body(ExecutionContext& context, const Block& block, const Tensor& positions, ResidualStream residual,
                            AttentionCache* cache) const;
  Variable logits(ExecutionContext& context, ResidualStream residual, bool last_only) const;

  QwenSettings settings_;
  Inventory inventory_;
  TransformerUnits units_;
  Variable token_embedding_, head_;
  std::vector<Block> blocks_;
  NormalizationLayer final_norm_;
};

}  // namespace dmuon
