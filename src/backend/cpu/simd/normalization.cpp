#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/rows.h"

namespace dmuon::DMUON_SIMD {
namespace {

// The row the normalisation reads, written first where a branch is added.
const float* add_branch(const NormalizationForwardTask& task, int64_t row) {
  const int64_t start = row * task.columns;
  const float* input = task.input + start;
  if (!task.branch) return input;
  const float* branch = task.branch + start;
  float* residual = task.residual + start;
  float factors[dropout_block];
  for (int64_t i = 0; i < task.columns; i += lanes) {
    const int64_t left = task.columns - i;
    Floats x = load_row(branch + i, left);
    if (task.branch_bias) x += load_row(task.branch_bias + i, left);
    if (task.dropout.active) {
      if (i % dropout_block == 0) flat_dropout_factors(task.dropout, start + i, left < dropout_block ? left : dropout_block, factors);
      x *= load_row(factors + i % dropout_block, left);
    }
    store_row(residual + i, x + load_row(input + i, left), left);
  }
  return residual;
}

void forward_row(const NormalizationForwardTask& task, int64_t row) {
  const float* x = add_branch(task, row);
  const int64_t columns = task.columns;
  float mean = 0.0f;
  if (!task.rms) {
    Floats sum{};
    for (int64_t i = 0; i < columns; i += lanes) sum += load_row(x + i, columns - i);
    mean = horizontal_sum(sum) / static_cast<float>(columns);
    task.mean[row] = mean;
  }
  Floats squares{};
  for (int64_t i = 0; i < columns; i += lanes) {
    const Floats d = load_row(x + i, columns - i, mean) - mean;
    squares += d * d;
  }
  const float inverse = 1.0f / __builtin_sqrtf(horizontal_sum(squares) / static_cast<float>(columns) + task.epsilon);
  task.inverse_deviation[row] = inverse;
  float* y = task.output + row * columns;
  for (int64_t i = 0; i < columns; i += lanes) {
    const int64_t left = columns - i;
    Floats v = (load_row(x + i, left) - mean) * inverse * load_row(task.weight + i, left);
    if (task.bias) v += load_row(task.bias + i, left);
    store_row(y + i, v, left);
  }
}

inline void accumulate(float* sums, Floats value, int64_t left) {
  if (sums) store_row(sums, load_row(sums, left) + value, left);
}

void backward_row(const NormalizationBackwardTask& task, int64_t row, const NormalizationPartials& partials) {
  const int64_t columns = task.columns, start = row * columns;
  const float mean = task.rms ? 0.0f : task.mean[row], inverse = task.inverse_deviation[row];
  const float *dy = task.d_output + start, *x = task.normalized_input + start;
  Floats sum{}, product{};
  for (int64_t i = 0; i < columns; i += lanes) {
    const int64_t left = columns - i;
    const Floats d = load_row(dy + i, left), normalized = (load_row(x + i, left, mean) - mean) * inverse;
    const Floats dn = d * load_row(task.weight + i, left);
    sum += dn;
    product += dn * normalized;
    if (partials.d_weight) accumulate(partials.d_weight + i, d * normalized, left);
    if (partials.d_bias) accumulate(partials.d_bias + i, d, left);
  }
  const float mean_dn = task.rms ? 0.0f : horizontal_sum(sum) / static_cast<float>(columns);
  const float mean_product = horizontal_sum(product) / static_cast<float>(columns);
  float factors[dropout_block];
  for (int64_t i = 0; i < columns; i += lanes) {
    const int64_t left = columns - i;
    const Floats normalized = (load_row(x + i, left, mean) - mean) * inverse;
    const Floats dn = load_row(dy + i, left) * load_row(task.weight + i, left);
    Floats dx = (dn - mean_dn - normalized * mean_product) * inverse;
    if (task.d_residual) dx += load_row(task.d_residual + start + i, left);
    store_row(task.d_input + start + i, dx, left);
    if (task.dropout.active) {
      if (i % dropout_block == 0) flat_dropout_factors(task.dropout, start + i, left < dropout_block ? left : dropout_block, factors);
      dx *= load_row(factors + i % dropout_block, left);
    }
    if (task.d_branch) store_row(task.d_branch + start + i, dx, left);
    if (partials.d_branch_bias) accumulate(partials.d_branch_bias + i, dx, left);
  }
}

}  // namespace

void normalization_forward(const NormalizationForwardTask& task, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) forward_row(task, row);
}

void normalization_backward(const NormalizationBackwardTask& task, int64_t begin, int64_t end, const NormalizationPartials& partials) {
  if (partials.d_weight) clear(partials.d_weight, task.columns);
  if (partials.d_bias) clear(partials.d_bias, task.columns);
  if (partials.d_branch_bias) clear(partials.d_branch_bias, task.columns);
  for (int64_t row = begin; row < end; ++row) backward_row(task, row, partials);
}

}  // namespace dmuon::DMUON_SIMD
