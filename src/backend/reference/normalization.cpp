#include <cmath>

#include "backend/reference/elements.h"
#include "backend/reference/reference_backend.h"

namespace dmuon::reference {
namespace {

// layer_norm: normalised = (x - mean(x)) / sqrt(var(x) + epsilon);  rms_norm: x / sqrt(mean(x^2) + epsilon).
template <class T>
void normalize(const NormalizationForward& f) {
  const bool centred = f.kind == NormalizationKind::layer_norm;
  const int64_t rows = f.input.rows(), columns = f.input.size(-1);
  const T* branch = optional_data<T>(f.branch);
  const T* branch_bias = optional_data<T>(f.branch_bias);
  const T* weight = f.weight.data<T>();
  const T* bias = optional_data<T>(f.bias);
  const DropoutFactor factor(f.dropout, rows * columns);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t first = i * columns;
    const T* x = f.input.data<T>() + first;
    if (branch) {
      T* residual = f.residual.data<T>() + first;
      for (int64_t j = 0; j < columns; ++j) {
        const double added = static_cast<double>(branch[first + j]) + (branch_bias ? branch_bias[j] : T{0});
        residual[j] = static_cast<T>(x[j] + factor(first + j) * added);
      }
      x = residual;
    }
    double mean = 0;
    for (int64_t j = 0; centred && j < columns; ++j) mean += x[j];
    mean /= static_cast<double>(columns);
    double variance = 0;
    for (int64_t j = 0; j < columns; ++j) variance += (x[j] - mean) * (x[j] - mean);
    variance /= static_cast<double>(columns);
    const double inverse_deviation = 1.0 / std::sqrt(variance + f.epsilon);
    if (centred) f.mean.data<Wide<T>>()[i] = static_cast<Wide<T>>(mean);
    f.inverse_deviation.data<Wide<T>>()[i] = static_cast<Wide<T>>(inverse_deviation);
    T* output = f.output.data<T>() + first;
    for (int64_t j = 0; j < columns; ++j)
      output[j] = static_cast<T>(weight[j] * ((x[j] - mean) * inverse_deviation) + (bias ? bias[j] : T{0}));
  }
}

// With n the normalised row and g = d_output * weight:
//   d_x = inverse_deviation * (g - mean(g) - n * mean(g n)); rms_norm lacks mean(g).
template <class T>
void normalize_backward(const NormalizationBackward& a) {
  const bool centred = a.kind == NormalizationKind::layer_norm;
  const int64_t rows = a.normalized_input.rows(), columns = a.normalized_input.size(-1);
  const auto width = static_cast<size_t>(columns);
  const T* weight = a.weight.data<T>();
  const T* d_residual = optional_data<T>(a.d_residual);
  T* d_branch = optional_data<T>(a.d_branch);
  const DropoutFactor factor(a.dropout, rows * columns);
  std::vector<double> normalized(width), gradient(width);
  std::vector<double> d_weight(width, 0.0), d_bias(width, 0.0), d_branch_bias(width, 0.0);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t first = i * columns;
    const T* x = a.normalized_input.data<T>() + first;
    const T* d_output = a.d_output.data<T>() + first;
    const double mean = centred ? a.mean.data<Wide<T>>()[i] : 0.0;
    const double inverse_deviation = a.inverse_deviation.data<Wide<T>>()[i];
    double gradient_mean = 0, product_mean = 0;
    for (size_t j = 0; j < width; ++j) {
      normalized[j] = (x[j] - mean) * inverse_deviation;
      gradient[j] = static_cast<double>(d_output[j]) * weight[j];
      d_weight[j] += d_output[j] * normalized[j];
      d_bias[j] += d_output[j];
      gradient_mean += centred ? gradient[j] : 0.0;
      product_mean += gradient[j] * normalized[j];
    }
    gradient_mean /= static_cast<double>(columns);
    product_mean /= static_cast<double>(columns);
    for (size_t j = 0; j < width; ++j) {
      const int64_t index = first + static_cast<int64_t>(j);
      double d_input = inverse_deviation * (gradient[j] - gradient_mean - normalized[j] * product_mean);
      if (d_residual) d_input += d_residual[index];  // read before d_input, which may be the same memory, is written
      const double through_mask = factor(index) * d_input;
      a.d_input.data<T>()[index] = static_cast<T>(d_input);
      if (d_branch) d_branch[index] = static_cast<T>(through_mask);
      d_branch_bias[j] += through_mask;
    }
  }
  store_sums<Wide<T>>(d_weight, a.d_weight, a.accumulate_weight);
  store_sums<Wide<T>>(d_bias, a.d_bias, a.accumulate_bias);
  store_sums<Wide<T>>(d_branch_bias, a.d_branch_bias, a.accumulate_branch_bias);
}

}  // namespace

void Normalization::forward(Stream& stream, const NormalizationForward& f) {
  host_.launch(stream, "normalization_forward", 0,
               {f.input, f.branch, f.branch_bias, f.residual, f.weight, f.bias, f.output, f.mean, f.inverse_deviation},
               [f] { with_model_type(f.input, [&](auto zero) { normalize<decltype(zero)>(f); }); });
}

void Normalization::backward(Stream& stream, const NormalizationBackward& a) {
  host_.launch(stream, "normalization_backward", 0,
               {a.d_output, a.d_residual, a.normalized_input, a.mean, a.inverse_deviation, a.weight, a.d_input, a.d_branch, a.d_branch_bias,
                a.d_weight, a.d_bias},
               [a] { with_model_type(a.d_output, [&](auto zero) { normalize_backward<decltype(zero)>(a); }); });
}

}  // namespace dmuon::reference
