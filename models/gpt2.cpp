#include "models/gpt2.h"

#include <cmath>

#include "dmuon/autograd/feed_forward.h"
#include "dmuon/core/checked.h"
#include "dmuon/core/text.h"

namespace dmuon {

Gpt2::Gpt2(const Gpt2Settings& settings) : settings_(settings) {
  const int64_t width = settings.width;
  const int64_t inner = settings.feed_forward_width > 0 ? settings.feed_forward_width : 4 * width;
  const int64_t vocabulary = settings.padded_vocabulary();
  const double deviation = settings.initializer_deviation;
  const double residual_divisor = std::sqrt(2.0 * static_cast<double>(settings.layers));

  units_.tied = settings.tied_head;
  if (settings.tied_head) units_.token = inventory_.add_unit("token_embedding", true);
  units_.embedding = inventory_.add_unit("embedding");
  if (!settings.tied_head) units_.token = units_.embedding;
  const auto embedding_table = [&](int unit, const char* name, int64_t rows) {
    return inventory_.declare(unit, name, Shape{rows, width}, ParameterRole::embedding, initialize_normal(deviation));
  };
  token_embedding_ = embedding_table(units_.token, "embedding.token.weight", vocabulary);
  position_embedding_ = embedding_table(units_.embedding, "embedding.position.weight", settings.context_length);

  for (int64_t i = 0; i < settings.layers; ++i) {
    const std::string name = text("blocks.", i);
    Block block;
    const int unit = inventory_.add_unit(name);
    units_.blocks.push_back(unit);
    block.first_operation = static_cast<uint64_t>(1 + 3 * i);
    const auto norm = [&](const char* part) {
      return NormalizationLayer::declare(inventory_, unit, name + part, width, settings.bias, settings.normalization);
    };
    const auto layer = [&](const char* part, int64_t out, int64_t in, double divisor, int64_t heads = 1) {
      const double spread = settings.initializer == MatrixInitializer::fan_in ? 1.0 / std::sqrt(static_cast<double>(in)) : deviation;
      return LinearLayer::declare(inventory_, unit, name + part, out, in, settings.bias, spread / divisor, heads);
    };
    block.attention_norm = norm(".attention_norm");
    block.query = layer(".attention.query", width, width, 1.0, settings.heads);
    block.key = layer(".attention.key", width, width, 1.0, settings.heads);
    block.value = layer(".attention.value", width, width, 1.0, settings.heads);
    block.output = layer(".attention.output", width, width, residual_divisor);
    block.mlp_norm = norm(".mlp_norm");
    block.up = layer(".mlp.up", inner, width, 1.0);
    block.down = layer(".mlp.down", width, inner, residual_divisor);
    blocks_.push_back(std::move(block));
  }

  units_.head = inventory_.add_unit("head");
  final_norm_ = NormalizationLayer::declare(inventory_, units_.head, "final_norm", width, settings.bias, settings.normalization);
  head_ = settings.tied_head
              ? token_embedding_
              : inventory_.declare(units_.head, "head.weight", Shape{vocabulary, width}, ParameterRole::head, initialize_normal(deviation));
}

Variable Gpt2::forward(ExecutionContext& context, const Tensor& tokens, const Tensor& positions, ModelCache* cache, bool last_only) {
  check_model_inputs("gpt2", tokens, positions, cache, blocks_.size(), settings_.context_length);
  if (context.training && settings_.dropout > 0.0 && context.sequences != tokens.size(0))
    throw ShapeError(text("gpt2: the context announces ", context.sequences, " sequences, tokens are ", tokens.to_string()));
  ResidualStream residual{embed(context, tokens, positions), {}};
  for (size_t i = 0; i < blocks_.size(); ++i) {
    AttentionCache* const layer_cache = cache ? &cache->layers[i] : nullptr;
    residual = run_block(context, listener_, units_.blocks[i], recompute_, std::move(residual),
                         [this, &block = blocks_[i], layer_cache](ExecutionContext& inner, ResidualStream in) {
                           return block_body(inner, block, std::move(in), layer_cache);
                         });
  }
  return logits(context, std::move(residual), last_only);
}

Variable Gpt2::embed(ExecutionContext& context, const Tensor& tokens, const Tensor& positions) const {
  UnitScope token_scope(context, settings_.tied_head ? listener_ : nullptr, units_.token);
  UnitScope scope(context, listener_, units_.embedding);
  Variable result = embedding(context, tokens, token_embedding_, positions, position_embedding_, settings_.dropout, 0);
  scope.leave();
  token_scope.leave();
  return result;
}

ResidualStream Gpt2::block_body(ExecutionContext& context, const Block& block, ResidualStream residual, AttentionCache* cache) const {
  const double dropout = settings_.dropout;
  // Values are dropped as soon as they are used up, so that without a tape their memory goes at once.
  Variable normalized;
  if (residual.branch.defined()) {
    ResidualNormalization boundary =
        block.attention_norm(context, residual.sum, std::move(residual.branch), {}, dropout, block.first_operation - 1);
    residual.sum = std::move(boundary.residual);
    normalized = std::move(boundary.output);
  } else {
    normalized = block.attention_norm(context, residual.sum);
  }
  Variable query = block.query(context, normalized);
  Variable key = block.key(context, normalized);
  Variable value = block.value(context, normalized);
  normalized = {};
  AttentionOptions options;
  options.heads = options.key_value_heads = settings_.heads;
  options.dropout = dropout;
  options.operation = block.first_operation;
  Variable attended = attention(context, query, key, value, options, cache);
  query = key = value = {};
  Variable branch = linear(context, attended, block.output.weight);
  attended = {};
  ResidualNormalization middle =
      block.mlp_norm(context, residual.sum, std::move(branch), block.output.bias, dropout, block.first_operation + 1);
  residual.sum = std::move(middle.residual);
  const FeedForwardLayers layers{block.up.weight, block.up.bias, block.down.weight, block.down.bias};
  return {std::move(residual.sum), feed_forward(context, std::move(middle.output), layers, settings_.activation)};
}

Variable Gpt2::logits(ExecutionContext& context, ResidualStream residual, bool last_only) const {
  UnitScope scope(context, listener_, units_.head);
  UnitScope token_scope(context, settings_.tied_head ? listener_ : nullptr, units_.token);
  const uint64_t operation = blocks_.back().first_operation + 2;  // of the last branch's dropout
  Variable normalized = final_norm_(context, residual.sum, std::move(residual.branch), {}, settings_.dropout, operation).output;
  residual.sum = {};
  if (last_only) normalized = last_position(context, normalized);
  Variable result = linear(context, normalized, head_);
  token_scope.leave();
  scope.leave();
  return result;
}

ModelCache Gpt2::make_cache(Backend& backend, int64_t batch, int64_t capacity) const {
  return make_attention_caches(inventory_, backend, blocks_.size(), batch, capacity, settings_.width);
}

ModelFacts Gpt2::facts() const {
  ModelFacts facts;
  facts.parameters = inventory_.elements();
  facts.gemm_parameters = matrix_elements(inventory_) + settings_.padded_vocabulary() * settings_.width;  // the head, tied or not
  facts.layers = settings_.layers;
  facts.width = settings_.width;
  facts.context_length = settings_.context_length;
  facts.vocabulary_size = settings_.vocabulary_size;
  return facts;
}

}  // namespace dmuon
