#include <algorithm>
#include <cmath>
#include <numbers>

#include "backend/reference/elements.h"
#include "backend/reference/reference_backend.h"

namespace dmuon::reference {
namespace {

constexpr double cubic = 0.044715;
const double root = std::sqrt(2.0 / std::numbers::pi);

double activation(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::gelu:
      return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2));
    case ActivationKind::gelu_tanh:
      return 0.5 * x * (1.0 + std::tanh(root * (x + cubic * x * x * x)));
    case ActivationKind::relu_squared:
      return std::max(x, 0.0) * std::max(x, 0.0);  // max keeps NaN in this order
  }
  throw ShapeError("unknown activation");
}

double derivative(ActivationKind kind, double x) {
  switch (kind) {
    case ActivationKind::gelu:
      return 0.5 * (1.0 + std::erf(x / std::numbers::sqrt2)) + x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
    case ActivationKind::gelu_tanh: {
      const double t = std::tanh(root * (x + cubic * x * x * x));
      return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * root * (1.0 + 3.0 * cubic * x * x);
    }
    case ActivationKind::relu_squared:
      return 2.0 * std::max(x, 0.0);
  }
  throw ShapeError("unknown activation");
}

}  // namespace

void Activation::forward(Stream& stream, const ActivationForward& f) {
  host_.launch(stream, "activation_forward", 0, {f.input, f.bias, f.output}, [f] {
    with_model_type(f.input, [&](auto zero) {
      using T = decltype(zero);
      const T* input = f.input.data<T>();
      const T* bias = optional_data<T>(f.bias);
      T* output = f.output.data<T>();
      const int64_t columns = f.input.size(-1);
      for (int64_t i = 0; i < f.input.elements(); ++i)
        output[i] = static_cast<T>(activation(f.kind, static_cast<double>(input[i]) + (bias ? bias[i % columns] : T{0})));
    });
  });
}

void Activation::backward(Stream& stream, const ActivationBackward& a) {
  host_.launch(stream, "activation_backward", 0, {a.input, a.bias, a.d_output, a.d_input, a.d_bias}, [a] {
    with_model_type(a.input, [&](auto zero) {
      using T = decltype(zero);
      const T* input = a.input.data<T>();
      const T* bias = optional_data<T>(a.bias);
      const T* d_output = a.d_output.data<T>();
      T* d_input = a.d_input.data<T>();
      const int64_t columns = a.input.size(-1);
      std::vector<double> d_bias(static_cast<size_t>(columns), 0.0);
      for (int64_t i = 0; i < a.input.elements(); ++i) {
        const double x = static_cast<double>(input[i]) + (bias ? bias[i % columns] : T{0});
        const double gradient = d_output[i] * derivative(a.kind, x);
        d_input[i] = static_cast<T>(gradient);
        d_bias[static_cast<size_t>(i % columns)] += gradient;
      }
      store_sums<Wide<T>>(d_bias, a.d_bias, a.accumulate_bias);
    });
  });
}

void Activation::scaled_add(Stream& stream, const ScaledAdd& s) {
  host_.launch(stream, "scaled_add", 0, {s.x, s.y}, [s] {
    with_model_type(s.y, [&](auto zero) {
      using T = decltype(zero);
      const T* x = s.x.data<T>();
      T* y = s.y.data<T>();
      for (int64_t i = 0; i < s.y.elements(); ++i) y[i] = static_cast<T>((s.accumulate ? y[i] : 0.0) + s.alpha * x[i]);
    });
  });
}

void Activation::dropout(Stream& stream, const ApplyDropout& d) {
  host_.launch(stream, "dropout", 0, {d.in, d.out}, [d] {
    with_model_type(d.in, [&](auto zero) {
      using T = decltype(zero);
      const T* in = d.in.data<T>();
      T* out = d.out.data<T>();
      const DropoutFactor factor(d.mask, d.in.elements());
      for (int64_t i = 0; i < d.in.elements(); ++i) out[i] = static_cast<T>(factor(i) * in[i]);
    });
  });
}

}  // namespace dmuon::reference
