#include "models/transformer.h"

#include <algorithm>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

std::vector<int> TransformerUnits::forward_order() const {
  std::vector<int> order;
  if (tied) order.push_back(token);
  if (!tied || embedding != token) order.push_back(embedding);
  order.insert(order.end(), blocks.begin(), blocks.end());
  order.push_back(head);
  if (tied) order.push_back(token);
  return order;
}

std::vector<int> TransformerUnits::backward_order() const {
  std::vector<int> order{head};
  if (tied) order.push_back(token);
  order.insert(order.end(), blocks.rbegin(), blocks.rend());
  if (tied) order.push_back(token);
  if (!tied || embedding != token) order.push_back(embedding);
  return order;
}

ResidualStream run_block(ExecutionContext& context, UnitListener* listener, int unit, bool recomputes, ResidualStream residual,
                         const BlockBody& body) {
  UnitScope scope(context, listener, unit);
  if (!recomputes || context.tape == nullptr) {
    residual = body(context, std::move(residual));
  } else {
    std::vector<Variable> inputs{std::move(residual.sum)};
    if (residual.branch.defined()) inputs.push_back(std::move(residual.branch));
    const std::vector<Variable> outputs = recompute(context, inputs, [body](ExecutionContext& inner, const std::vector<Variable>& in) {
      const ResidualStream out = body(inner, {in[0], in.size() > 1 ? in[1] : Variable()});
      return std::vector<Variable>{out.sum, out.branch};
    });
    residual = {outputs[0], outputs[1]};
  }
  scope.leave();
  return residual;
}

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

void check_model_inputs(const char* family, const Tensor& tokens, const Tensor& positions, const ModelCache* cache, size_t layers,
                        int64_t context_length) {
  if (tokens.rank() != 2 || positions.shape() != tokens.shape() || tokens.elements() == 0)
    throw ShapeError(text(family, ": tokens and positions must be int32 [B, T] alike and not empty, found ", tokens.to_string(), " and ",
                          positions.to_string()));
  if (cache != nullptr && cache->layers.size() != layers)
    throw ShapeError(text(family, ": the cache has ", cache->layers.size(), " layers, the model ", layers));
  int64_t past = 0;  // of the longest sequence
  if (cache != nullptr)
    for (const int64_t length : cache->layers.front().lengths) past = std::max(past, length);
  if (past + tokens.size(1) > context_length)
    throw ShapeError(text(family, ": ", past + tokens.size(1), " positions exceed model.context_length = ", context_length));
}

ModelCache make_attention_caches(const Inventory& inventory, Backend& backend, size_t layers, int64_t batch, int64_t capacity,
                                 int64_t columns) {
  const Tensor& value = inventory.parameters().front().state->value;
  const DType dtype = value.defined() ? value.dtype() : DType::float32;
  ModelCache cache;
  for (size_t i = 0; i < layers; ++i) {
    const auto make = [&] {
      return backend.allocate(Shape{batch, capacity, columns}, dtype, MemoryCategory::activations, "attention cache");
    };
    cache.layers.push_back({make(), make(), std::vector<int64_t>(static_cast<size_t>(batch), 0)});
  }
  return cache;
}

int64_t matrix_elements(const Inventory& inventory) {
  int64_t elements = 0;
  for (const ParameterDeclaration& parameter : inventory.parameters())
    if (parameter.role == ParameterRole::matrix) elements += parameter.shape.elements();
  return elements;
}

}  // namespace dmuon
