// GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019) with the choices of nanoGPT:
// pre-norm blocks, learned positions, a feed-forward half (by default) four times as wide, N(0, deviation) with the projections that
// write to the residual stream divided by sqrt(2 layers).
//
// Query, key and value are matrices of their own. Names:
//   embedding.token.weight [V, C], embedding.position.weight [T, C]
//   blocks.N.attention_norm.{weight,bias}, blocks.N.attention.{query,key,value,output}.{weight,bias}
//   blocks.N.mlp_norm.{weight,bias}, blocks.N.mlp.{up,down}.{weight,bias}
//   final_norm.{weight,bias}, head.weight [V, C] (untied)
// Units, in this order: "token_embedding" (tied head only: used by the embedding and by the head), "embedding",
// "blocks.0" ..., "head".
//
// Between units travel the residual sum and the last branch, not yet added: the next unit adds it and normalises in one
// pass with its own norm. The bias of a branch that leaves its unit (mlp.down) is therefore added by its own matrix
// product; the one of attention.output is fused into the addition inside the block.
#pragma once

#include "dmuon/nn/layers.h"
#include "models/transformer.h"

namespace dmuon {

struct Gpt2Settings {
  int64_t layers = 12;
  int64_t heads = 12;
  int64_t width = 768;
  int64_t feed_forward_width = 0;  // 0: 4 * width
  int64_t context_length = 1024;
  int64_t vocabulary_size = 50257;
  int64_t vocabulary_multiple = 1;  // rows of the token embedding and columns of the logits are padded to a multiple
  NormalizationOptions normalization;
  ActivationKind activation = ActivationKind::gelu;
  bool tied_head = true;
  bool bias = true;
  double dropout = 0.0;  // of the embedding, the attention probabilities and both branches
  MatrixInitializer initializer = MatrixInitializer::fixed;
  double initializer_deviation = 0.02;

  // From the resolved "model" object; absent keys keep their defaults. ConfigError names the key, or
  // the keys that do not fit together.
  static Gpt2Settings from_json(const Json& settings);
  int64_t padded_vocabulary() const;
};

class Gpt2 final : public Model {
 public:
  explicit Gpt2(const Gpt2Settings& settings);

  const Inventory& inventory() const override { return inventory_; }
  ModelFacts facts() const override;
  std::vector<int> forward_order() const override { return units_.forward_order(); }
  std::vector<int> backward_order() const override { return units_.backward_order(); }
  Variable forward(ExecutionContext& context, const Tensor& tokens, const Tensor& positions, ModelCache* cache = nullptr,
                   bool last_only = false) override;
  ModelCache make_cache(Backend& backend, int64_t batch, int64_t capacity) const override;

 private:
  struct Block {
    uint64_t first_operation = 0;  // numbers of its dropouts: attention, attention branch, feed-forward branch
    NormalizationLayer attention_norm, mlp_norm;
    LinearLayer query, key, value, output, up, down;
  };

  Variable embed(ExecutionContext& context, const Tensor& tokens, const Tensor& positions) const;
  ResidualStream block_body(ExecutionContext& context, const Block& block, ResidualStream residual, AttentionCache* cache) const;
  Variable logits(ExecutionContext& context, ResidualStream residual, bool last_only) const;

  Gpt2Settings settings_;
  Inventory inventory_;
  TransformerUnits units_;
  Variable token_embedding_, position_embedding_, head_;
  std::vector<Block> blocks_;
  NormalizationLayer final_norm_;
};

}  // namespace dmuon
