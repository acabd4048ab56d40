#include "models/gpt2.h"

#include <cmath>

#include "dmuon/core/checked.h"
#include "dmuon/core/text.h"

namespace dmuon {

Gpt2::Gpt2(const Gpt2Settings& settings) : settings_(settings) {
  const int64_t width = settings.width;
  const int64_t vocabulary = settings.padded_vocabulary();
  const double deviation = settings.initializer_deviation;
  const double residual_divisor = std::sqrt(2.0 * static_cast<double>(settings.layers));

  if (settings.tied_head) token_unit_ = inventory_.add_unit("token_embedding", true);
  embedding_unit_ = inventory_.add_unit("embedding");
  if (!settings.tied_head) token_unit_ = embedding_unit_;
  const auto embedding_table = [&](int unit, const char* name, int64_t rows) {
    return inventory_.declare(unit, name, Shape{rows, width}, ParameterRole::embedding, initialize_normal(deviation));
  };
  token_embedding_ = embedding_table(token_unit_, "embedding.token.weight", vocabulary);
  position_embedding_ = embedding_table(embedding_unit_, "embedding.position.weight", settings.context_length);

  for (int64_t i = 0; i < settings.layers; ++i) {
    const std::string name = text("blocks.", i);
    Block block;
    block.unit = inventory_.add_unit(name);
    block.first_operation = static_cast<uint64_t>(1 + 3 * i);
    const auto norm = [&](const char* part) {
      return NormalizationLayer::declare(inventory_, block.unit, name + part, width, settings.bias, settings.normalization);
    };
    const auto layer = [&](const char* part, int64_t out, int64_t in, double divisor) {
      const double spread = settings.initializer == MatrixInitializer::fan_in ? 1.0 / std::sqrt(static_cast<double>(in)) : deviation;
      return LinearLayer::declare(inventory_, block.unit, name + part, out, in, settings.bias, spread / divisor);
    };
    block.attention_norm = norm(".attention_norm");
    block.query = layer(".attention.query", width, width, 1.0);
    block.key = layer(".attention.key", width, width, 1.0);
    block.value = layer(".attention.value", width, width, 1.0);
    block.output = layer(".attention.output", width, width, residual_divisor);
    block.mlp_norm = norm(".mlp_norm");
    block.up = layer(".mlp.up", 4 * width, width, 1.0);
    block.down = layer(".mlp.down", width, 4 * width, residual_divisor);
    blocks_.push_back(std::move(block));
  }

  head_unit_ = inventory_.add_unit("head");
  final_norm_ = NormalizationLayer::declare(inventory_, head_unit_, "final_norm", width, settings.bias, settings.normalization);
  head_ = settings.tied_head
              ? token_embedding_
              : inventory_.declare(head_unit_, "head.weight", Shape{vocabulary, width}, ParameterRole::head, initialize_normal(deviation));
}

Variable Gpt2::forward(ExecutionContext& context, const Tensor& tokens, const Tensor& positions, ModelCache* cache, bool last_only) {
  check_inputs(context, tokens, positions, cache);
  Residual residual = embed(context, tokens, positions);
  for (size_t i = 0; i < blocks_.size(); ++i)
    residual = run_block(context, blocks_[i], std::move(residual), cache ? &cache->layers[i] : nullptr);
  return logits(context, std::move(residual), last_only);
}

Gpt2::Residual Gpt2::embed(ExecutionContext& context, const Tensor& tokens, const Tensor& positions) const {
  UnitScope token_scope(context, settings_.tied_head ? listener_ : nullptr, token_unit_);
  UnitScope scope(context, listener_, embedding_unit_);
  Residual residual;
  residual.sum = embedding(context, tokens, token_embedding_, positions, position_embedding_, settings_.dropout, 0);
  scope.leave();
  token_scope.leave();
  return residual;
}

Gpt2::Residual Gpt2::run_block(ExecutionContext& context, const Block& block, Residual residual, AttentionCache* cache) const {
  UnitScope scope(context, listener_, block.unit);
  if (!recompute_ || context.tape == nullptr) {
    residual = block_body(context, block, std::move(residual), cache);
  } else {
    std::vector<Variable> inputs{std::move(residual.sum)};
    if (residual.branch.defined()) inputs.push_back(std::move(residual.branch));
    const uint64_t operation = residual.branch_operation;
    const std::vector<Variable> outputs =
        recompute(context, inputs, [this, &block, operation](ExecutionContext& inner, const std::vector<Variable>& in) {
          const Residual out = block_body(inner, block, {in[0], in.size() > 1 ? in[1] : Variable(), operation}, nullptr);
          return std::vector<Variable>{out.sum, out.branch};
        });
    residual = {outputs[0], outputs[1], block.first_operation + 2};
  }
  scope.leave();
  return residual;
}

Gpt2::Residual Gpt2::block_body(ExecutionContext& context, const Block& block, Residual residual, AttentionCache* cache) const {
  const double dropout = settings_.dropout;
  // Values are dropped as soon as they are used up, so that without a tape their memory goes at once.
  Variable normalized;
  if (residual.branch.defined()) {
    ResidualNormalization boundary =
        block.attention_norm(context, residual.sum, std::move(residual.branch), {}, dropout, residual.branch_operation);
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
  Variable hidden = linear(context, middle.output, block.up.weight);
  middle.output = {};
  hidden = bias_activation(context, std::move(hidden), block.up.bias, settings_.activation);
  return {std::move(residual.sum), block.down(context, hidden), block.first_operation + 2};
}

namespace {

// The last position of every sequence: [B, T, C] -> [B, 1, C].
Variable last_position(ExecutionContext& context, const Variable& x) {
  const Tensor& value = x.value();
  if (context.tape != nullptr) throw ShapeError("logits of the last position only are for generation; they cannot be recorded");
  const int64_t columns = value.size(2);
  const Tensor result = context.allocate(Shape{value.size(0), 1, columns}, value.dtype(), "last position");
  for (int64_t b = 0; b < value.size(0); ++b)
    context.backend.copy(context.stream, value.slice(b, 1).flat().flat((value.size(1) - 1) * columns, columns),
                         result.flat(b * columns, columns));
  return Variable(result);
}

}  // namespace

Variable Gpt2::logits(ExecutionContext& context, Residual residual, bool last_only) const {
  UnitScope scope(context, listener_, head_unit_);
  UnitScope token_scope(context, settings_.tied_head ? listener_ : nullptr, token_unit_);
  Variable normalized =
      final_norm_(context, residual.sum, std::move(residual.branch), {}, settings_.dropout, residual.branch_operation).output;
  residual.sum = {};
  if (last_only) normalized = last_position(context, normalized);
  Variable result = linear(context, normalized, head_);
  token_scope.leave();
  scope.leave();
  return result;
}

void Gpt2::check_inputs(const ExecutionContext& context, const Tensor& tokens, const Tensor& positions, const ModelCache* cache) const {
  if (tokens.rank() != 2 || positions.shape() != tokens.shape() || tokens.elements() == 0)
    throw ShapeError(text("gpt2: tokens and positions must be int32 [B, T] alike and not empty, found ", tokens.to_string(), " and ",
                          positions.to_string()));
  if (cache != nullptr && cache->layers.size() != blocks_.size())
    throw ShapeError(text("gpt2: the cache has ", cache->layers.size(), " layers, the model ", blocks_.size()));
  const int64_t past = cache != nullptr ? cache->layers.front().length : 0;
  if (past + tokens.size(1) > settings_.context_length)
    throw ShapeError(text("gpt2: ", past + tokens.size(1), " positions exceed model.context_length = ", settings_.context_length));
  if (context.training && settings_.dropout > 0.0 && context.sequences != tokens.size(0))
    throw ShapeError(text("gpt2: the context announces ", context.sequences, " sequences, tokens are ", tokens.to_string()));
}

ModelCache Gpt2::make_cache(Backend& backend, int64_t batch, int64_t capacity) const {
  const Tensor& value = inventory_.parameters().front().state->value;
  const DType dtype = value.defined() ? value.dtype() : DType::float32;
  ModelCache cache;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const auto make = [&] {
      return backend.allocate(Shape{batch, capacity, settings_.width}, dtype, MemoryCategory::activations, "attention cache");
    };
    cache.layers.push_back({make(), make(), 0});
  }
  return cache;
}

// The tied table is used around the embedding and inside the head.
std::vector<int> Gpt2::forward_order() const {
  std::vector<int> order{embedding_unit_};
  if (settings_.tied_head) order.insert(order.begin(), token_unit_);
  for (const Block& block : blocks_) order.push_back(block.unit);
  order.push_back(head_unit_);
  if (settings_.tied_head) order.push_back(token_unit_);
  return order;
}

std::vector<int> Gpt2::backward_order() const {
  std::vector<int> order{head_unit_};
  if (settings_.tied_head) order.push_back(token_unit_);
  for (auto block = blocks_.rbegin(); block != blocks_.rend(); ++block) order.push_back(block->unit);
  if (settings_.tied_head) order.push_back(token_unit_);
  order.push_back(embedding_unit_);
  return order;
}

ModelFacts Gpt2::facts() const {
  ModelFacts facts;
  facts.parameters = inventory_.elements();
  for (const ParameterDeclaration& parameter : inventory_.parameters())
    if (parameter.role == ParameterRole::matrix) facts.gemm_parameters += parameter.shape.elements();
  facts.gemm_parameters += settings_.padded_vocabulary() * settings_.width;  // the head, tied or not
  facts.layers = settings_.layers;
  facts.width = settings_.width;
  facts.context_length = settings_.context_length;
  facts.vocabulary_size = settings_.vocabulary_size;
  return facts;
}

}  // namespace dmuon
