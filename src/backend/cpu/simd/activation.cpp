#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/math.h"
#include "backend/cpu/simd/rows.h"

namespace dmuon::DMUON_SIMD {
namespace {

constexpr float inverse_sqrt_2_pi = 0.39894228040143268f;
constexpr float tanh_scale = 0.79788456080286536f, tanh_cube = 0.044715f;  // sqrt(2 / pi) (x + 0.044715 x^3)

// 0.5 (1 + tanh(u)) = 1 / (1 + exp(-2 u)): one exponential, and no cancellation on either side.
struct Sigmoid {
  Floats value, complement;
};
inline Sigmoid tanh_gate(Floats x) {
  const Floats e = exponential((x * x * tanh_cube + 1.0f) * (x * (-2.0f * tanh_scale)));
  const Floats value = 1.0f / (1.0f + e);
  return {value, e * value};
}

inline Floats activate(Activation kind, Floats x) {
  switch (kind) {
    case Activation::gelu:
      return x * normal_distribution(x).cumulative;
    case Activation::gelu_tanh:
      return x * tanh_gate(x).value;
    default: {
      const Floats positive = x < 0.0f ? Floats{} : x;
      return positive * positive;
    }
  }
}

inline Floats derivative(Activation kind, Floats x) {
  switch (kind) {
    case Activation::gelu: {
      const Normal normal = normal_distribution(x);
      return normal.cumulative + x * inverse_sqrt_2_pi * normal.kernel;
    }
    case Activation::gelu_tanh: {
      const Sigmoid gate = tanh_gate(x);
      return gate.value + x * gate.value * gate.complement * ((x * x * (3.0f * tanh_cube) + 1.0f) * (2.0f * tanh_scale));
    }
    default:
      return x < 0.0f ? Floats{} : x + x;
  }
}

}  // namespace

void activation_forward(const ActivationTask& task, int64_t begin, int64_t end) {
  const int64_t columns = task.columns;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = task.input + row * columns;
    float* y = task.output + row * columns;
    for (int64_t i = 0; i < columns; i += lanes) {
      const int64_t left = columns - i;
      Floats v = load_row(x + i, left);
      if (task.bias) v += load_row(task.bias + i, left);
      store_row(y + i, activate(task.kind, v), left);
    }
  }
}

void activation_backward(const ActivationTask& task, int64_t begin, int64_t end, float* d_bias) {
  const int64_t columns = task.columns;
  if (d_bias) clear(d_bias, columns);
  for (int64_t row = begin; row < end; ++row) {
    const float *x = task.input + row * columns, *dy = task.d_output + row * columns;
    float* dx = task.d_input + row * columns;
    for (int64_t i = 0; i < columns; i += lanes) {
      const int64_t left = columns - i;
      Floats v = load_row(x + i, left);
      if (task.bias) v += load_row(task.bias + i, left);
      const Floats d = load_row(dy + i, left) * derivative(task.kind, v);
      store_row(dx + i, d, left);
      if (d_bias) store_row(d_bias + i, load_row(d_bias + i, left) + d, left);
    }
  }
}

void scaled_add(const float* x, float* y, float alpha, bool accumulate, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t left = end - i;
    Floats v = load_row(x + i, left) * alpha;
    if (accumulate) v += load_row(y + i, left);
    store_row(y + i, v, left);
  }
}

void apply_dropout(const Dropout& dropout, const float* in, float* out, int64_t begin, int64_t end) {
  float factors[dropout_block];
  for (int64_t i = begin; i < end; i += dropout_block) {
    const int64_t count = end - i < dropout_block ? end - i : dropout_block;
    flat_dropout_factors(dropout, i, count, factors);
    for (int64_t j = 0; j < count; ++j) out[i + j] = in[i + j] * factors[j];
  }
}

void column_sum(const float* in, int64_t columns, int64_t begin, int64_t end, float* out) {
  clear(out, columns);
  for (int64_t row = begin; row < end; ++row) {
    const float* x = in + row * columns;
    for (int64_t i = 0; i < columns; i += lanes) {
      const int64_t left = columns - i;
      store_row(out + i, load_row(out + i, left) + load_row(x + i, left), left);
    }
  }
}

void add_partials(const float* partials, int64_t blocks, int64_t columns, bool accumulate, float* out, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; i += lanes) {
    const int64_t left = end - i;
    Floats sum = load_row(partials + i, left);
    for (int64_t block = 1; block < blocks; ++block) sum += load_row(partials + block * columns + i, left);
    if (accumulate) sum += load_row(out + i, left);
    store_row(out + i, sum, left);
  }
}

}  // namespace dmuon::DMUON_SIMD
