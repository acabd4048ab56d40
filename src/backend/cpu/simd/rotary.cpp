#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/rows.h"

namespace dmuon::DMUON_SIMD {
namespace {

// The factor that brings the root mean square of a head to one.
float inverse_deviation(const float* x, int64_t channels, float epsilon) {
  Floats squares{};
  for (int64_t i = 0; i < channels; i += lanes) {
    const Floats v = load_row(x + i, channels - i);
    squares += v * v;
  }
  return 1.0f / __builtin_sqrtf(horizontal_sum(squares) / static_cast<float>(channels) + epsilon);
}

// The gradient of an output turned back, over the first half of the pairs from i on.
struct Pair {
  Floats first, second;
};
inline Pair turn_back(const float* d, int64_t i, int64_t half, Floats cosine, Floats sine) {
  const Floats first = load_row(d + i, half - i), second = load_row(d + half + i, half - i);
  return {first * cosine + second * sine, second * cosine - first * sine};
}

inline void add(float* sums, Floats value, int64_t left) { store_row(sums, load_row(sums, left) + value, left); }

void backward_head(const RotaryTask& task, const float* cosine, const float* sine, int64_t head, float* d_weight) {
  const int64_t channels = task.channels, half = channels / 2, start = head * channels;
  const float* d = task.d_output + start;
  float* dx = task.d_input + start;
  if (!task.weight) {
    for (int64_t i = 0; i < half; i += lanes) {
      const int64_t left = half - i;
      const Pair g = turn_back(d, i, half, load_row(cosine + i, left), load_row(sine + i, left));
      store_row(dx + i, g.first, left);
      store_row(dx + half + i, g.second, left);
    }
    return;
  }
  const float *x = task.input + start, *weight = task.weight;
  const float inverse = task.inverse_deviation[head];
  Floats products{};
  for (int64_t i = 0; i < half; i += lanes) {
    const int64_t left = half - i;
    const Pair g = turn_back(d, i, half, load_row(cosine + i, left), load_row(sine + i, left));
    const Floats first = g.first * load_row(x + i, left) * inverse, second = g.second * load_row(x + half + i, left) * inverse;
    products += first * load_row(weight + i, left) + second * load_row(weight + half + i, left);
    if (d_weight) {
      add(d_weight + i, first, left);
      add(d_weight + half + i, second, left);
    }
  }
  const float mean = horizontal_sum(products) / static_cast<float>(channels);
  for (int64_t i = 0; i < half; i += lanes) {
    const int64_t left = half - i;
    const Pair g = turn_back(d, i, half, load_row(cosine + i, left), load_row(sine + i, left));
    const Floats first = g.first * load_row(weight + i, left) - load_row(x + i, left) * (inverse * mean);
    const Floats second = g.second * load_row(weight + half + i, left) - load_row(x + half + i, left) * (inverse * mean);
    store_row(dx + i, first * inverse, left);
    store_row(dx + half + i, second * inverse, left);
  }
}

}  // namespace

void rotary_forward(const RotaryTask& task, int64_t begin, int64_t end) {
  const int64_t channels = task.channels, half = channels / 2;
  for (int64_t row = begin; row < end; ++row) {
    const float *cosine = task.cosines + task.places[row] * half, *sine = task.sines + task.places[row] * half;
    for (int64_t head = row * task.heads; head < (row + 1) * task.heads; ++head) {
      const float* x = task.input + head * channels;
      float* y = task.output + head * channels;
      float inverse = 1.0f;
      if (task.weight) inverse = inverse_deviation(x, channels, task.epsilon);
      if (task.weight && task.inverse_deviation) task.inverse_deviation[head] = inverse;
      for (int64_t i = 0; i < half; i += lanes) {
        const int64_t left = half - i;
        Floats first = load_row(x + i, left), second = load_row(x + half + i, left);
        if (task.weight) {
          first *= inverse * load_row(task.weight + i, left);
          second *= inverse * load_row(task.weight + half + i, left);
        }
        const Floats c = load_row(cosine + i, left), s = load_row(sine + i, left);
        store_row(y + i, first * c - second * s, left);
        store_row(y + half + i, second * c + first * s, left);
      }
    }
  }
}

void rotary_backward(const RotaryTask& task, int64_t begin, int64_t end, float* d_weight) {
  if (d_weight) clear(d_weight, task.channels);
  const int64_t half = task.channels / 2;
  for (int64_t row = begin; row < end; ++row)
    for (int64_t head = row * task.heads; head < (row + 1) * task.heads; ++head)
      backward_head(task, task.cosines + task.places[row] * half, task.sines + task.places[row] * half, head, d_weight);
}

}  // namespace dmuon::DMUON_SIMD
