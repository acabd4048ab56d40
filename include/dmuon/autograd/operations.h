// Differentiable operations. Each checks shapes and dtypes (ShapeError names the operation, what was expected and found),
// runs its kernel, and records its backward when the context says so. One .cpp per operation, forward and backward side
// by side. [N, C] stands for any leading dimensions flattened.
#pragma once

#include <cstdint>

#include "dmuon/autograd/tape.h"
#include "dmuon/backend/kernels.h"

namespace dmuon {

// Attention memory of one layer for generation: keys and values of past positions, [B, capacity, G, D].
struct AttentionCache {
  Tensor key, value;
  int64_t length = 0;  // positions filled
};

// tokens, positions: int32 [B, T] on the device; indices must have been checked on the host. -> [B, T, C]
Variable embedding(ExecutionContext& context, const Tensor& tokens, const Variable& token_table, const Tensor& positions,
                   const Variable& position_table, double dropout, uint64_t operation);
// x [N, in], weight [out, in], bias [out] optional -> [N, out]
Variable linear(ExecutionContext& context, const Variable& x, const Variable& weight, const Variable& bias = {});
// activation(x + bias) -> shape of x
Variable bias_activation(ExecutionContext& context, const Variable& x, const Variable& bias, ActivationKind kind);

struct NormalizationOptions {
  NormalizationKind kind = NormalizationKind::layer_norm;
  double epsilon = 1e-5;
};
Variable normalization(ExecutionContext& context, const Variable& x, const Variable& weight, const Variable& bias,
                       const NormalizationOptions& options);
// residual = x + dropout(branch + branch_bias); output = normalised residual. The pre-norm block boundary in one pass.
struct ResidualNormalization {
  Variable residual, output;
};
ResidualNormalization residual_normalization(ExecutionContext& context, const Variable& x, const Variable& branch,
                                             const Variable& branch_bias, double dropout, uint64_t operation, const Variable& weight,
                                             const Variable& bias, const NormalizationOptions& options);

struct AttentionOptions {
  int64_t heads = 1;
  int64_t key_value_heads = 1;
  bool causal = true;
  double dropout = 0.0;
  uint64_t operation = 0;  // number of this operation in the model: part of the dropout key
};
// query [B, T, H*D], key, value [B, T, G*D] -> [B, T, H*D]. With a cache (no-grad only) keys and values are appended to
// it and all of it is attended to.
Variable attention(ExecutionContext& context, const Variable& query, const Variable& key, const Variable& value,
                   const AttentionOptions& options, AttentionCache* cache = nullptr);

// losses [N] of logits [N, V] and targets int32 [N]; only the first `classes` columns take part. The gradient of
// gradient_scale * sum(losses) replaces the logits in the same pass (their memory is given up), so a backward through
// this operation takes no upstream gradient.
Variable softmax_cross_entropy(ExecutionContext& context, Variable logits, const Tensor& targets, int64_t classes, double gradient_scale);

// Element-wise helpers.
Variable add(ExecutionContext& context, const Variable& a, const Variable& b);
Variable dropout(ExecutionContext& context, const Variable& x, double probability, uint64_t operation);

// Runs `body` without recording and reruns it during the backward pass from the kept input: memory for time. `body` must
// be a pure function of its input and of parameters.
Variable recompute(ExecutionContext& context, const Variable& input, std::function<Variable(ExecutionContext&, const Variable&)> body);

}  // namespace dmuon
