#include <cmath>

#include "backend/reference/elements.h"
#include "backend/reference/reference_backend.h"
#include "backend/rotary_angles.h"

namespace dmuon::reference {
namespace {

// Cosine and sine of every pair at one position. The angle is a product in float32 of float32 numbers, as the models were
// trained with; its cosine is exact.
struct Turn {
  std::vector<double> cosine, sine;

  Turn(int64_t position, int64_t channels, double theta) {
    for (int64_t i = 0; i < channels / 2; ++i) {
      const float angle = static_cast<float>(position) * rotary_frequency(theta, i, channels);
      cosine.push_back(std::cos(static_cast<double>(angle)));
      sine.push_back(std::sin(static_cast<double>(angle)));
    }
  }
};

}  // namespace

void Attention::rotary_forward(Stream& stream, const RotaryForward& f) {
  host_.launch(stream, "rotary_forward", 0, {f.input, f.positions, f.weight, f.output, f.inverse_deviation}, [f] {
    with_model_type(f.input, [&](auto zero) {
      using T = decltype(zero);
      const int64_t rows = f.input.size(0), heads = f.input.size(1), channels = f.input.size(2), half = channels / 2;
      const T* weight = optional_data<T>(f.weight);
      Wide<T>* deviations = optional_data<Wide<T>>(f.inverse_deviation);
      std::vector<double> x(static_cast<size_t>(channels));
      for (int64_t row = 0; row < rows; ++row) {
        const Turn turn(f.positions.data<int32_t>()[row], channels, f.theta);
        for (int64_t head = 0; head < heads; ++head) {
          const T* in = f.input.data<T>() + (row * heads + head) * channels;
          T* out = f.output.data<T>() + (row * heads + head) * channels;
          double squares = 0.0;
          for (int64_t i = 0; i < channels; ++i) {
            x[static_cast<size_t>(i)] = in[i];
            squares += x[static_cast<size_t>(i)] * x[static_cast<size_t>(i)];
          }
          if (weight) {
            const double inverse = 1.0 / std::sqrt(squares / static_cast<double>(channels) + f.epsilon);
            if (deviations) deviations[row * heads + head] = static_cast<Wide<T>>(inverse);
            for (int64_t i = 0; i < channels; ++i) x[static_cast<size_t>(i)] *= inverse * weight[i];
          }
          for (int64_t i = 0; i < half; ++i) {
            const auto at = static_cast<size_t>(i), other = static_cast<size_t>(i + half);
            out[i] = static_cast<T>(x[at] * turn.cosine[at] - x[other] * turn.sine[at]);
            out[i + half] = static_cast<T>(x[other] * turn.cosine[at] + x[at] * turn.sine[at]);
          }
        }
      }
    });
  });
}

// The gradient is turned back, then goes through the norm: with n the normalised head and g = gradient * weight,
// d_x = inverse_deviation * (g - n * mean(g n)).
void Attention::rotary_backward(Stream& stream, const RotaryBackward& b) {
  const RotaryForward& f = b.forward;
  host_.launch(stream, "rotary_backward", 0, {f.input, f.positions, f.weight, f.inverse_deviation, b.d_output, b.d_input, b.d_weight},
               [b, f] {
                 with_model_type(b.d_output, [&](auto zero) {
                   using T = decltype(zero);
                   const int64_t rows = b.d_output.size(0), heads = b.d_output.size(1), channels = b.d_output.size(2), half = channels / 2;
                   const T* weight = optional_data<T>(f.weight);
                   std::vector<double> g(static_cast<size_t>(channels)), d_weight(static_cast<size_t>(channels), 0.0);
                   for (int64_t row = 0; row < rows; ++row) {
                     const Turn turn(f.positions.data<int32_t>()[row], channels, f.theta);
                     for (int64_t head = 0; head < heads; ++head) {
                       const int64_t start = (row * heads + head) * channels;
                       const T* d = b.d_output.data<T>() + start;
                       T* out = b.d_input.data<T>() + start;
                       for (int64_t i = 0; i < half; ++i) {
                         const auto at = static_cast<size_t>(i), other = static_cast<size_t>(i + half);
                         const double first = d[i], second = d[i + half];
                         g[at] = first * turn.cosine[at] + second * turn.sine[at];
                         g[other] = second * turn.cosine[at] - first * turn.sine[at];
                       }
                       if (weight) {
                         const T* x = f.input.data<T>() + start;
                         const double inverse = f.inverse_deviation.data<Wide<T>>()[row * heads + head];
                         double product = 0.0;
                         for (int64_t i = 0; i < channels; ++i) {
                           const auto at = static_cast<size_t>(i);
                           d_weight[at] += g[at] * x[i] * inverse;
                           g[at] *= weight[i];
                           product += g[at] * x[i] * inverse;
                         }
                         product /= static_cast<double>(channels);
                         for (int64_t i = 0; i < channels; ++i) {
                           const auto at = static_cast<size_t>(i);
                           g[at] = inverse * (g[at] - x[i] * inverse * product);
                         }
                       }
                       for (int64_t i = 0; i < channels; ++i) out[i] = static_cast<T>(g[static_cast<size_t>(i)]);
                     }
                   }
                   store_sums<Wide<T>>(d_weight, b.d_weight, b.accumulate_weight);
                 });
               });
}

}  // namespace dmuon::reference
