// Differentiable operations. Each checks shapes and dtypes (ShapeError names the operation, what was expected and found),
// runs its kernel, and records its backward when the context says so. One .cpp per operation, forward and backward side
// by side. [N, C] stands for any leading dimensions flattened.
//
// Outputs, and the gradients of activations, have the dtype of the input x; weights, biases and tables must have it, too. Where it is
// bfloat16, the gradients of weights, biases and tables, statistics and losses are float32. DeviceError naming the operation where
// the backend does not compute in the dtype (Backend::computes_in).
//
// Inputs passed by value may be overwritten when they are given up (std::move of the last handle): the output then takes
// over their memory where the backward does not need them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "dmuon/autograd/tape.h"
#include "dmuon/backend/kernels.h"

namespace dmuon {

// Throws DataError naming `what`, the position and the value unless 0 <= index < size for all indices. Kernels trust
// indices, so whoever brings tokens from outside calls this before they reach the device.
void check_tokens(std::span<const int32_t> indices, int64_t size, std::string_view what);

// tokens, positions: int32 [B, T] on the device; indices must have been checked on the host. -> [B, T, C]. Without
// positions both `positions` and `position_table` are undefined. Dropout acts on the sum.
Variable embedding(ExecutionContext& context, const Tensor& tokens, const Variable& token_table, const Tensor& positions,
                   const Variable& position_table, double dropout, uint64_t operation);
// x [N, in], weight [out, in], bias [out] optional -> [N, out]
Variable linear(ExecutionContext& context, const Variable& x, const Variable& weight, const Variable& bias = {});
// activation(x + bias) -> shape of x; bias [C] optional
Variable bias_activation(ExecutionContext& context, Variable x, const Variable& bias, ActivationKind kind);

// SwiGLU: silu(gate) * up, silu(z) = z / (1 + exp(-z)); gate and up alike -> their shape. Without a tape the output takes over the
// memory of gate or up where it is given up.
Variable swiglu(ExecutionContext& context, Variable gate, Variable up);

struct NormalizationOptions {
  NormalizationKind kind = NormalizationKind::layer_norm;
  double epsilon = 1e-5;
};
// x [N, C], weight [C], bias [C] optional -> shape of x
Variable normalization(ExecutionContext& context, const Variable& x, const Variable& weight, const Variable& bias,
                       const NormalizationOptions& options);
// residual = x + dropout(branch + branch_bias); output = normalised residual. The pre-norm block boundary in one pass.
// The gradient of x and of branch is one tensor when there is no dropout (ownership: variable.h).
struct ResidualNormalization {
  Variable residual, output;
};
ResidualNormalization residual_normalization(ExecutionContext& context, const Variable& x, Variable branch, const Variable& branch_bias,
                                             double dropout, uint64_t operation, const Variable& weight, const Variable& bias,
                                             const NormalizationOptions& options);

// Attention memory of one layer for generation: keys and values of past positions, [B, capacity, G*D]. Each sequence has a length of its
// own. Memory of another dtype than the first keys' is made anew.
struct AttentionCache {
  Tensor key, value;
  std::vector<int64_t> lengths;  // positions filled, of every sequence
};

struct AttentionOptions {
  int64_t heads = 1;
  int64_t key_value_heads = 1;
  bool causal = true;
  double dropout = 0.0;
  uint64_t operation = 0;  // number of this operation in the model: part of the dropout key
};
// query [B, T, H*D], key, value [B, T, G*D] -> [B, T, H*D], scaled by 1/sqrt(D). With a cache (no-grad only) keys and
// values are appended to each sequence's and all of them are attended to; ShapeError, before anything is appended, when one is full.
Variable attention(ExecutionContext& context, const Variable& query, const Variable& key, const Variable& value,
                   const AttentionOptions& options, AttentionCache* cache = nullptr);

struct RotaryOptions {
  int64_t heads = 1;
  double theta = 10000.0;
  double epsilon = 1e-6;  // of the norm
};
// Rotary positions in half-split form (kernels.h, RotaryForward): x [B, T, H*D] with D even, positions int32 [B, T] -> shape of x.
// With `weight` [D] every head is first normalised by its root mean square and scaled. In place where x is given up, and with a
// weight only without a tape.
Variable rotary(ExecutionContext& context, Variable x, const Tensor& positions, const RotaryOptions& options, const Variable& weight = {});

// losses [N] of logits [N, V] and targets int32 [N]; only the first `classes` columns take part; a target < 0 is masked:
// loss and gradient 0. When the context records, the gradient of gradient_scale * sum(losses) replaces the logits in the
// same pass (their memory is given up), so a backward through this operation takes no upstream gradient.
Variable softmax_cross_entropy(ExecutionContext& context, Variable logits, const Tensor& targets, int64_t classes, double gradient_scale);

// Element-wise helpers.
Variable add(ExecutionContext& context, const Variable& a, const Variable& b);
Variable dropout(ExecutionContext& context, Variable x, double probability, uint64_t operation);

// Runs `body` without recording and reruns it, recorded, during the backward pass from the kept inputs: memory for time.
// `body` must be a pure function of its inputs and of parameters; it returns as many outputs both times. Values and
// gradients have the bits of body(context, inputs).
using RecomputeBody = std::function<std::vector<Variable>(ExecutionContext&, const std::vector<Variable>&)>;
std::vector<Variable> recompute(ExecutionContext& context, const std::vector<Variable>& inputs, RecomputeBody body);

}  // namespace dmuon
