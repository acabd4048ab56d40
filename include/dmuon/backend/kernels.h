// The kernel seam: one small table of kernels per family, implemented once per device. Conventions for every kernel:
//
// - Arguments are structs of tensors. Sizes written [N, C] are those of the flattened rows x last dimension; a tensor
//   may have more leading dimensions. Callers (the operations of autograd, the rules of optim) check shapes and throw
//   ShapeError; kernels trust them.
// - Everything runs in the order of the given stream and may return before it has run. Kernels keep handles, so a
//   caller may drop its tensors at once.
// - Outputs are overwritten, whatever they held (NaN included), unless the comment says "accumulated when
//   `accumulate...`". Optional tensors are undefined tensors. Outputs do not alias inputs unless stated.
// - float32 on every backend, float64 too on the reference backend; statistics and hyper-parameters as stated.
// - Where Backend::computes_in(bfloat16), the families of the model (products, attention, normalisation, activations, embedding,
//   loss) take bfloat16 too: inputs, outputs, parameter values (weights, biases, tables) and the gradients of activations
//   have one dtype; gradients of parameters, statistics (mean, inverse_deviation, log_sum_exp) and losses are float32 and
//   accumulate in float32. Products add in float32; the c of a Multiply is float32 or of a's dtype.
// - Results are a pure function of the inputs and the number of threads; the families marked "thread-count invariant"
//   give equal bits for any number of threads and any batch composition (design contract: exactness 2).
#pragma once

#include <cstdint>
#include <vector>

#include "dmuon/backend/sign_kernels.h"
#include "dmuon/backend/stream.h"
#include "dmuon/core/tensor.h"

namespace dmuon {

// Which elements a dropout keeps: element e of sequence s is kept iff uniform(seed, s, e) >= probability, and scaled by
// 1/(1 - probability). Sequences are counted globally, so the mask depends neither on ranks nor on micro-batches.
struct DropoutMask {
  double probability = 0.0;    // 0: no dropout
  uint64_t seed = 0;           // key of Random: run seed, step and operation mixed
  int64_t first_sequence = 0;  // global index of the first sequence in this batch
  int64_t sequences = 1;       // sequences in this batch; elements per sequence = elements / sequences
};

// ---------------------------------------------------------------------------------------------------------------- GEMM

// c[m, n] = alpha * op(a) * op(b) + beta * c (+ bias[n] on every row). beta == 0 overwrites c. Row-major.
struct Multiply {
  Tensor a, b, c;
  bool transpose_a = false;  // a is [k, m]
  bool transpose_b = false;  // b is [n, k]
  double alpha = 1.0;
  double beta = 0.0;
  Tensor bias;  // optional
};

// For every i: d_i = alpha * op(a_i) * op(b_i) + beta * c_i + diagonal * I. Thread-count invariant: each output element
// sums over k in one fixed order that depends on the shape only. d_i may alias c_i, never a_i or b_i. On a device that
// orthogonalises in float16, all of them may be float16; sums are float32.
struct BatchedProduct {
  std::vector<Tensor> a, b, c, d;  // c may be empty when beta == 0
  bool transpose_a = false;
  bool transpose_b = false;
  double alpha = 1.0;
  std::vector<double> alphas;  // optional: one per matrix, replaces alpha
  double beta = 0.0;
  double diagonal = 0.0;
  bool symmetric = false;  // the exact result is symmetric: the lower triangle is computed and mirrored, bit for bit
};

// Batched products in which matrix i of a step meets only matrix i of the other steps; every step has equally many. Matrix
// i belongs to queue i % queues. The matrices of a queue run one after another, each through all steps, so that they may
// share scratch and find it in the cache; queues run in any order, or at once on the threads of the device. One queue:
// all threads work inside each product. Same bits as the steps one by one, however many queues.
struct ProductSequence {
  std::vector<BatchedProduct> steps;
  int queues = 1;
};

// out[columns] = sum over rows of in[rows, columns], rows added in order within fixed blocks.
struct ColumnSum {
  Tensor in, out;
  bool accumulate = false;  // accumulated when set
};

class MatrixKernels {
 public:
  virtual ~MatrixKernels() = default;
  virtual void multiply(Stream& stream, const Multiply& arguments) = 0;
  virtual void batched_product(Stream& stream, const BatchedProduct& arguments) = 0;
  // Unless overridden: matrix by matrix through batched_product.
  virtual void product_sequence(Stream& stream, const ProductSequence& arguments);
  virtual void column_sum(Stream& stream, const ColumnSum& arguments) = 0;
};

// ----------------------------------------------------------------------------------------------------------- attention

// Scaled dot-product attention in tiles; no T x S buffer is kept. Query t of a sequence sees keys 0 .. key_offset + t
// when causal, otherwise all S. Grouped queries: H must be a multiple of G; query head h uses key head h / (H / G).
struct AttentionForward {
  Tensor query;        // [B, T, H, D]
  Tensor key, value;   // [B, S, G, D]
  Tensor output;       // [B, T, H, D]
  Tensor log_sum_exp;  // [B, H, T], for the backward; optional
  double scale = 1.0;  // usually 1/sqrt(D)
  bool causal = true;
  int64_t key_offset = 0;  // keys that precede the first query (a cache); S >= key_offset + T when causal
  DropoutMask dropout;     // on the probabilities; element (h, t, s) of a sequence is (h * T + t) * S + s
  // Sequences that hold different numbers of keys in one cache (no backward): key_offsets[b], in place of key_offset, precede the
  // first query of sequence b, which has key_offsets[b] + T <= S keys; what lies behind them is not read. Every sequence gets the bits
  // that it gets alone.
  std::vector<int64_t> key_offsets;
  Tensor new_key, new_value;  // [B, T, G, D], optional, with key_offsets: first stored in key and value behind those that precede
};
struct AttentionBackward {
  AttentionForward forward;  // as given to and filled by the forward; log_sum_exp defined, no key_offsets
  Tensor d_output;           // [B, T, H, D]
  Tensor d_query, d_key, d_value;
};

// Rotary positions (Su et al., "RoFormer", 2021) in half-split form, as Qwen and Llama have them: element i < D/2 of a head pairs
// with element i + D/2 and turns by the angle position * theta^(-2i/D), computed in float32 from float32 frequencies.
// With `weight` every head is first normalised by its root mean square over D and scaled (Qwen3's query and key norm).
struct RotaryForward {
  Tensor input;      // [N, H, D], D even
  Tensor positions;  // int32 [N]
  double theta = 10000.0;
  Tensor weight;  // [D], optional
  double epsilon = 1e-6;
  Tensor output;             // [N, H, D]; may alias input
  Tensor inverse_deviation;  // float32 [N, H], written with a weight; optional: for the backward
};
// d_input = the gradient through the rotation and, with a weight, the normalisation.
struct RotaryBackward {
  RotaryForward forward;  // as given to and filled by the forward; input is read with a weight only
  Tensor d_output;        // [N, H, D]
  Tensor d_input;         // [N, H, D]; may alias d_output
  Tensor d_weight;        // [D], with a weight; accumulated when accumulate_weight
  bool accumulate_weight = false;
};

class AttentionKernels {
 public:
  virtual ~AttentionKernels() = default;
  virtual void forward(Stream& stream, const AttentionForward& arguments) = 0;
  virtual void backward(Stream& stream, const AttentionBackward& arguments) = 0;
  virtual void rotary_forward(Stream& stream, const RotaryForward& arguments) = 0;
  virtual void rotary_backward(Stream& stream, const RotaryBackward& arguments) = 0;
};

// ------------------------------------------------------------------------------------------------------- normalisation

enum class NormalizationKind : uint8_t { layer_norm, rms_norm };

// residual = input + dropout(branch + branch_bias), output = weight * normalised(residual) + bias.
// Without a branch, residual is not written (the input is normalised as it is). Statistics in float32 (float64 when
// the tensors are). rms_norm: mean is not written.
struct NormalizationForward {
  NormalizationKind kind = NormalizationKind::layer_norm;
  double epsilon = 1e-5;
  Tensor input;                    // [N, C]
  Tensor branch;                   // [N, C], optional
  Tensor branch_bias;              // [C], optional
  DropoutMask dropout;             // of the branch
  Tensor residual;                 // [N, C], written when there is a branch; may alias branch or input
  Tensor weight, bias;             // [C]; bias optional
  Tensor output;                   // [N, C]
  Tensor mean, inverse_deviation;  // [N]
};
// d_input = d_residual + gradient through the normalisation; d_branch = d_input through the dropout mask;
// d_branch_bias = column sums of d_branch.
struct NormalizationBackward {
  NormalizationKind kind = NormalizationKind::layer_norm;
  Tensor d_output;          // [N, C]
  Tensor d_residual;        // [N, C], optional: gradient that reaches the residual by other paths
  Tensor normalized_input;  // [N, C]: the forward's residual, or its input without a branch
  Tensor mean, inverse_deviation, weight;
  DropoutMask dropout;
  Tensor d_input;           // [N, C]; may alias d_residual or d_output
  Tensor d_branch;          // [N, C], optional; without dropout callers share d_input instead
  Tensor d_branch_bias;     // [C], optional; accumulated when accumulate_branch_bias
  Tensor d_weight, d_bias;  // [C]; d_bias optional; accumulated when accumulate_weight / accumulate_bias
  bool accumulate_branch_bias = false, accumulate_weight = false, accumulate_bias = false;
};

class NormalizationKernels {
 public:
  virtual ~NormalizationKernels() = default;
  virtual void forward(Stream& stream, const NormalizationForward& arguments) = 0;
  virtual void backward(Stream& stream, const NormalizationBackward& arguments) = 0;
};

// --------------------------------------------------------------------------------------------------------- activations

enum class ActivationKind : uint8_t { gelu, gelu_tanh, relu_squared };

// output = activation(input + bias)
struct ActivationForward {
  ActivationKind kind = ActivationKind::gelu_tanh;
  Tensor input;   // [N, C]
  Tensor bias;    // [C], optional
  Tensor output;  // [N, C]; may alias input
};
// d_input = d_output * activation'(input + bias); d_bias = column sums of d_input
struct ActivationBackward {
  ActivationKind kind = ActivationKind::gelu_tanh;
  Tensor input, bias;  // as in the forward
  Tensor d_output;     // [N, C]
  Tensor d_input;      // [N, C]; may alias d_output
  Tensor d_bias;       // [C], optional; accumulated when accumulate_bias
  bool accumulate_bias = false;
};
// SwiGLU (Shazeer, 2020): output = silu(gate) * up, silu(z) = z / (1 + exp(-z))
struct SwiGluForward {
  Tensor gate, up;  // [N, C]
  Tensor output;    // [N, C]; may alias gate or up
};
// d_gate = d_output * up * silu'(gate); d_up = d_output * silu(gate)
struct SwiGluBackward {
  Tensor gate, up, d_output;  // [N, C]
  Tensor d_gate, d_up;        // [N, C]; may alias gate, up or d_output element by element
};
// y += alpha * x when accumulate, else y = alpha * x. Equal shapes.
struct ScaledAdd {
  Tensor x, y;
  double alpha = 1.0;
  bool accumulate = true;
};
// out = in with the mask applied; the backward is the same call on the gradient. May alias.
struct ApplyDropout {
  Tensor in, out;
  DropoutMask mask;
};

class ActivationKernels {
 public:
  virtual ~ActivationKernels() = default;
  virtual void forward(Stream& stream, const ActivationForward& arguments) = 0;
  virtual void backward(Stream& stream, const ActivationBackward& arguments) = 0;
  virtual void swiglu_forward(Stream& stream, const SwiGluForward& arguments) = 0;
  virtual void swiglu_backward(Stream& stream, const SwiGluBackward& arguments) = 0;
  virtual void scaled_add(Stream& stream, const ScaledAdd& arguments) = 0;
  virtual void dropout(Stream& stream, const ApplyDropout& arguments) = 0;
};

// -------------------------------------------------------------------------------------------------- embedding and loss

// output[n] = dropout(token_table[tokens[n]] + position_table[positions[n]]). Indices are checked by the caller on the
// host before they get here.
struct EmbeddingForward {
  Tensor tokens;                       // int32 [B, T]
  Tensor positions;                    // int32 [B, T], optional together with position_table
  Tensor token_table, position_table;  // [V, C], [P, C]
  DropoutMask dropout;
  Tensor output;  // [B, T, C]
};
// Rows that no index names get zero (or stay, when accumulating). Contributions are added in the order of n.
struct EmbeddingBackward {
  Tensor tokens, positions;
  DropoutMask dropout;
  Tensor d_output;
  Tensor d_token_table, d_position_table;
  bool accumulate_token_table = false, accumulate_position_table = false;
};
// losses[n] = log(sum_j exp(logits[n, j])) - logits[n, target]; 0 for a target < 0 (masked). Only the first `classes`
// columns take part. With write_gradient, logits is replaced in the same pass by gradient_scale * (softmax - one_hot),
// zero in masked rows and in padded columns.
struct SoftmaxCrossEntropy {
  Tensor logits;   // [N, V]; read, and overwritten with write_gradient
  Tensor targets;  // int32 [N]
  Tensor losses;   // [N]
  int64_t classes = 0;
  bool write_gradient = false;
  double gradient_scale = 1.0;
};

class EmbeddingLossKernels {
 public:
  virtual ~EmbeddingLossKernels() = default;
  virtual void embedding_forward(Stream& stream, const EmbeddingForward& arguments) = 0;
  virtual void embedding_backward(Stream& stream, const EmbeddingBackward& arguments) = 0;
  virtual void softmax_cross_entropy(Stream& stream, const SoftmaxCrossEntropy& arguments) = 0;
};

// --------------------------------------------------------------------------------------- optimizer passes, reductions
// Thread-count invariant. `hyper` tensors are float64 on the device, so that a captured graph stays valid while their
// values change; the enums name their entries. `published`, where a pass has it, receives the updated parameter in the
// same pass: float32, or bfloat16 rounded to nearest even (NaN stays NaN), of the parameter's shape.

// AdamW (Loshchilov & Hutter, 2019) with g = gradient_scale * gradient:
//   m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2,
//   p = p - learning_rate * weight_decay * p - learning_rate * (m / correction1) / (sqrt(v / correction2) + epsilon)
struct AdamWPass {
  enum Hyper { learning_rate, beta1, beta2, epsilon, weight_decay, correction1, correction2, gradient_scale, count };
  Tensor parameter, gradient, first_moment, second_moment;  // [n]
  Tensor hyper;
  Tensor published = {};  // optional
};
// m = momentum * m + (1 - dampening) * g (first step: m = g), u = nesterov ? g + momentum * m : m,
// p = p - learning_rate * (u + weight_decay * p); g = gradient_scale * gradient. decoupled as in AdamW.
struct SgdPass {
  enum Hyper { learning_rate, momentum, dampening, weight_decay, gradient_scale, first_step, nesterov, count };
  Tensor parameter, gradient, momentum_buffer;  // [n]
  Tensor hyper;
  Tensor published = {};  // optional
};
// Momentum half of Muon with g = gradient_scale * gradient:
//   sum form:  m = momentum * m + g;                     u = nesterov ? g + momentum * m : m
//   lerp form: m = momentum * m + (1 - momentum) * g;    u = nesterov ? (1 - momentum) * g + momentum * m : m
// update receives u and may alias gradient; square_sums[c] receives the sum of u^2 over chunk c of `chunk` elements, in float64.
struct MuonMomentum {
  enum Hyper { momentum, gradient_scale, count };
  bool sum_form = false;
  bool nesterov = true;
  Tensor gradient, momentum_buffer, update;  // [m, n]
  Tensor square_sums;                        // float64 [ceil(m n / chunk)], optional
  int64_t chunk = 16384;
  Tensor hyper;
};
// p = p * (1 - learning_rate * weight_decay) - learning_rate * scale * update
struct MuonApply {
  enum Hyper { learning_rate, weight_decay, scale, count };
  Tensor parameter, update;  // float32; on devices `update` may be float16
  Tensor hyper;
  Tensor published = {};  // optional
};
// out = in, rounded once to nearest even; NaN stays NaN, overflow becomes infinite. Any two floating dtypes, equal sizes.
struct Convert {
  Tensor in, out;
};
// out = in / norm for a matrix whose norm is the root of the sum of `square_sums`, added in order: in float32, kept finite like
// the engine's EpsilonMode (0 add, 1 clamp, 2 scaled), rounded once to out's dtype. A zero matrix stays zero; a norm that is
// not finite gives NaN. Nothing is read on the host. For devices; others need not have it.
struct Normalize {
  Tensor in;           // float32 [m, n]
  Tensor square_sums;  // float64 [chunks]
  Tensor out;          // float16 or float32
  int epsilon_mode = 1;
  double epsilon = 0.0, safety = 1.0;
};
// out[c] = sum of squares of chunk c (float64), chunks of `chunk` elements counted from the tensor's start; each chunk
// is summed in one fixed order.
struct SquareSums {
  Tensor in;   // any floating dtype
  Tensor out;  // float64 [ceil(n / chunk)]
  int64_t chunk = 16384;
};
// out[0] = sum of all elements in float64, in fixed order.
struct Sum {
  Tensor in, out;
};
// out[0] = number of elements that are NaN or infinite, as int64.
struct CountNonFinite {
  Tensor in, out;
};

class OptimizerKernels {
 public:
  virtual ~OptimizerKernels() = default;
  virtual void adamw(Stream& stream, const AdamWPass& arguments) = 0;
  virtual void sgd(Stream& stream, const SgdPass& arguments) = 0;
  virtual void muon_momentum(Stream& stream, const MuonMomentum& arguments) = 0;
  virtual void muon_apply(Stream& stream, const MuonApply& arguments) = 0;
  virtual void convert(Stream& stream, const Convert& arguments) = 0;
  virtual void square_sums(Stream& stream, const SquareSums& arguments) = 0;
  virtual void sum(Stream& stream, const Sum& arguments) = 0;
  virtual void count_non_finite(Stream& stream, const CountNonFinite& arguments) = 0;
  // DeviceError unless overridden.
  virtual void normalize(Stream& stream, const Normalize& arguments);
};

}  // namespace dmuon
