#include <cmath>

#include "backend/reference/elements.h"
#include "backend/reference/reference_backend.h"

namespace dmuon::reference {
namespace {

double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

}  // namespace

void Activation::swiglu_forward(Stream& stream, const SwiGluForward& f) {
  host_.launch(stream, "swiglu_forward", 0, {f.gate, f.up, f.output}, [f] {
    with_model_type(f.gate, [&](auto zero) {
      using T = decltype(zero);
      const T *gate = f.gate.data<T>(), *up = f.up.data<T>();
      T* output = f.output.data<T>();
      for (int64_t i = 0; i < f.gate.elements(); ++i) {
        const double z = gate[i];
        output[i] = static_cast<T>(z * sigmoid(z) * up[i]);
      }
    });
  });
}

void Activation::swiglu_backward(Stream& stream, const SwiGluBackward& b) {
  host_.launch(stream, "swiglu_backward", 0, {b.gate, b.up, b.d_output, b.d_gate, b.d_up}, [b] {
    with_model_type(b.gate, [&](auto zero) {
      using T = decltype(zero);
      const T *gate = b.gate.data<T>(), *up = b.up.data<T>(), *d_output = b.d_output.data<T>();
      T *d_gate = b.d_gate.data<T>(), *d_up = b.d_up.data<T>();
      for (int64_t i = 0; i < b.gate.elements(); ++i) {
        const double z = gate[i], u = up[i], d = d_output[i], s = sigmoid(z);
        d_gate[i] = static_cast<T>(d * u * s * (1.0 + z * (1.0 - s)));
        d_up[i] = static_cast<T>(d * z * s);
      }
    });
  });
}

}  // namespace dmuon::reference
