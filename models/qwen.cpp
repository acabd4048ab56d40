#include "models/qwen.h"

#include <cmath>

#include "dmuon/core/checked.h"
#include "dmuon/core/text.h"

namespace dmuon {

Qwen::Qwen(const QwenSettings& settings) : settings_(settings) {
  const int64_t width = settings.width, vocabulary = settings.padded_vocabulary();
  const int64_t queries = settings.heads * settings.head_width, keys = settings.key_value_heads * settings.head_width;
  const double deviation = settings.initializer_deviation;
  const double residual_divisor = std::sqrt(2.0 * static_cast<double>(settings.layers));
  const NormalizationOptions rms{NormalizationKind::rms_norm, settings.normalization_epsilon};

  units_.tied = settings.tied_head;
  units_.token = units_.embedding = settings.tied_head ? inventory_.add_unit("token_embedding", true) : inventory_.add_unit("embedding");
  token_embedding_ = inventory_.declare(units_.token, "embedding.token.weight", Shape{vocabulary, width}, ParameterRole::embedding,
                                        initialize_normal(deviation));

  for (int64_t i = 0; i < settings.layers; ++i) {
    const std::string name = text("blocks.", i);
    const int unit = inventory_.add_unit(name);
    units_.blocks.push_back(unit);
    Block block;
    const auto norm = [&](const char* part) { return NormalizationLayer::declare(inventory_, unit, name + part, width, false, rms); };
    const auto layer = [&](const char* part, int64_t out, int64_t in, bool bias, double divisor, int64_t heads = 1) {
      const double spread = settings.initializer == MatrixInitializer::fan_in ? 1.0 / std::sqrt(static_cast<double>(in)) : deviation;
      return LinearLayer::declare(inventory_, unit, name + part, out, in, bias, spread / divisor, heads);
    };
    const auto head_norm = [&](const char* part) {
      return inventory_.declare(unit, name + part, Shape{settings.head_width}, ParameterRole::vector, initialize_one());
    };
    block.attention_norm = norm(".attention_norm");
    block.query = layer(".attention.query", queries, width, settings.attention_bias, 1.0, settings.heads);
    block.key = layer(".attention.key", keys, width, settings.attention_bias, 1.0, settings.key_value_heads);
    block.value = layer(".attention.value", keys, width, settings.attention_bias, 1.0, settings.key_value_heads);
    if (settings.query_key_normalization) {
      block.query_norm = head_norm(".attention.query_norm.weight");
      block.key_norm = head_norm(".attention.key_norm.weight");
    }
    block.output = layer(".attention.output", width, queries, false, residual_divisor);
    block.mlp_norm = norm(".mlp_norm");
    block.gate = layer(".mlp.gate", settings.feed_forward_width, width, false, 1.0);
    block.up = layer(".mlp.up", settings.feed_forward_width, width, false, 1.0);
    block.down = layer(".mlp.down", width, settings.feed_forward_width, false, residual_divisor);
    blocks_.push_back(std::move(block));
  }

  units_.head = inventory_.add_unit("head");
  final_norm_ = NormalizationLayer::declare(inventory_, units_.head, "final_norm", width, false, rms);
  head_ = settings.tied_head
              ? token_embedding_
              : inventory_.declare(units_.head, "head.weight", Shape{vocabulary, width}, ParameterRole::head, initialize_normal(deviation));
}

Variable Qwen::forward(ExecutionContext& context, const Tensor& tokens, const Tensor& positions, ModelCache* cache, bool last_only) {
  check_model_inputs("qwen", tokens, positions, cache, blocks_.size(), settings_.context_length);
  ResidualStream residual{embed(context, tokens), {}};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    AttentionCache* const layer_cache = cache ? &cache->layers[i] : nullptr;
    residual = run_block(context, listener_, units_.blocks[i], recompute_, std::move(residual),
                         [this, &block = blocks_[i], positions, layer_cache](ExecutionContext& inner, ResidualStream in) {
                           return block_body(inner, block, positions, std::move(in), layer_cache);
                         });
  }
  return logits(context, std::move(residual), last_only);
}

Variable Qwen::embed(ExecutionContext& context, const Tensor& tokens) const {
  UnitScope scope(context, listener_, units_.embedding);
  Variable result = embedding(context, tokens, token_embedding_, {}, {}, 0.0, 0);
  scope.leave();
  return result;
}

ResidualStream Qwen::block_body(ExecutionContext& context, const Block& block, const Tensor& positions, ResidualStream residual,
                                AttentionCache* cache) const {
  // Values are dropped as soon as they are used up, so that without a tape their memory goes at once.
  Variable normalized;
  if (residual.branch.defined()) {
    ResidualNormalization boundary = block.attention_norm(context, residual.sum, std::move(residual.branch), {}, 0.0, 0);
    residual.sum = std::move(boundary.residual);
    normalized = std::move(boundary.output);
  } else {
    normalized = block.attention_norm(context, residual.sum);
  }
  RotaryOptions turn{.heads = settings_.heads, .theta = settings_.rotary_base, .epsilon = settings_.normalization_epsilon};
  Variable query = rotary(context, block.query(context, normalized), positions, turn, block.query_norm);
  turn.heads = settings_.key_value_heads;
  Variable key = rotary(context, block.key(context, normalized), positions, turn, block.key_norm);
  Variable value = block.value(context, normalized);
  normalized = {};
  AttentionOptions options;
  options.heads = settings_.heads;
  options.key_value_heads = settings_.key_value_heads;
  Variable attended = attention(context, query, key, value, options, cache);
  query = key = value = {};
  Variable branch = block.output(context, attended);
  attended = {};
  ResidualNormalization middle = block.mlp_norm(context, residual.sum, std::move(branch), {}, 0.0, 0);
  residual.sum = std::move(middle.residual);
  Variable gate = block.gate(context, middle.output), up = block.up(context, middle.output);
  middle.output = {};
  const Variable hidden = swiglu(context, std::move(gate), std::move(up));
  return {std::move(residual.sum), block.down(context, hidden)};
}

Variable Qwen::logits(ExecutionContext& context, ResidualStream residual, bool last_only) const {
  UnitScope scope(context, listener_, units_.head);
  UnitScope token_scope(context, settings_.tied_head ? listener_ : nullptr, units_.token);
  Variable normalized = final_norm_(context, residual.sum, std::move(residual.branch), {}, 0.0, 0).output;
  residual.sum = {};
  if (last_only) normalized = last_position(context, normalized);
  Variable result = linear(context, normalized, head_);
  token_scope.leave();
  scope.leave();
  return result;
}

ModelCache Qwen::make_cache(Backend& backend, int64_t batch, int64_t capacity) const {
  return make_attention_caches(inventory_, backend, blocks_.size(), batch, capacity, settings_.key_value_heads * settings_.head_width);
}

ModelFacts Qwen::facts() const {
  ModelFacts facts;
  facts.parameters = inventory_.elements();
  facts.gemm_parameters = matrix_elements(inventory_) + settings_.padded_vocabulary() * settings_.width;  // the head, tied or not
  facts.layers = settings_.layers;
  facts.width = settings_.heads * settings_.head_width;
  facts.context_length = settings_.context_length;
  facts.vocabulary_size = settings_.vocabulary_size;
  return facts;
}

}  // namespace dmuon
