#include "backend/cpu/simd/optimizer.h"

#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/publishing.h"

namespace dmuon::DMUON_SIMD {
namespace {

// Sums in double over a fixed set of 16 interleaved lanes, added as a tree: one order for every instruction set.
constexpr int64_t sum_lanes = 16;
struct LaneSums {
  double lane[sum_lanes] = {};
  double total() const {
    double sums[sum_lanes];
    for (int64_t i = 0; i < sum_lanes; ++i) sums[i] = lane[i];
    for (int64_t width = sum_lanes / 2; width > 0; width /= 2)
      for (int64_t i = 0; i < width; ++i) sums[i] += sums[i + width];
    return sums[0];
  }
};

double sum_of_squares(const float* in, int64_t count) {
  LaneSums sums;
  int64_t i = 0;
  for (; i + sum_lanes <= count; i += sum_lanes)
#pragma omp simd
    for (int64_t j = 0; j < sum_lanes; ++j) {
      const double x = in[i + j];
      sums.lane[j] += x * x;
    }
  for (int64_t j = 0; i + j < count; ++j) {
    const double x = in[i + j];
    sums.lane[j] += x * x;
  }
  return sums.total();
}

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

void adamw_block(const AdamWTask& task, int64_t begin, int64_t end) {
  float* __restrict p = task.parameter, * __restrict m = task.first_moment, * __restrict v = task.second_moment;
  const float* __restrict gradient = task.gradient;
  const AdamWTask t = task;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = t.gradient_scale * gradient[i];
    const float first = t.beta1 * m[i] + t.one_minus_beta1 * g;
    const float second = t.beta2 * v[i] + t.one_minus_beta2 * (g * g);
    const float denominator = __builtin_sqrtf(second) * t.inverse_sqrt_second + t.epsilon;
    m[i] = first;
    v[i] = second;
    p[i] = p[i] - t.decay * p[i] - t.step * (first / denominator);
  }
}

void sgd_block(const SgdTask& task, int64_t begin, int64_t end) {
  float* __restrict p = task.parameter, * __restrict m = task.momentum_buffer;
  const float* __restrict gradient = task.gradient;
  const SgdTask t = task;
  if (t.first_step) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const float g = t.gradient_scale * gradient[i];
      const float u = t.nesterov ? g + t.momentum * g : g;
      m[i] = g;
      p[i] = p[i] - t.learning_rate * (u + t.weight_decay * p[i]);
    }
    return;
  }
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float g = t.gradient_scale * gradient[i];
    const float momentum = t.momentum * m[i] + t.one_minus_dampening * g;
    const float u = t.nesterov ? g + t.momentum * momentum : momentum;
    m[i] = momentum;
    p[i] = p[i] - t.learning_rate * (u + t.weight_decay * p[i]);
  }
}

}  // namespace

void adamw(const AdamWTask& task, int64_t begin, int64_t end) {
  publishing(task.parameter, task.published, begin, end, [&](int64_t first, int64_t last) { adamw_block(task, first, last); });
}

void sgd(const SgdTask& task, int64_t begin, int64_t end) {
  publishing(task.parameter, task.published, begin, end, [&](int64_t first, int64_t last) { sgd_block(task, first, last); });
}

void muon_momentum(const MuonMomentumTask& task, int64_t chunk_begin, int64_t chunk_end) {
  const MuonMomentumTask t = task;
  for (int64_t chunk = chunk_begin; chunk < chunk_end; ++chunk) {
    const int64_t begin = chunk * t.chunk, end = smaller(begin + t.chunk, t.elements);
    float* __restrict m = t.momentum_buffer;
    float* update = t.update;  // may be the gradient
    const float* gradient = t.gradient;
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
      const float g = t.gradient_factor * (t.gradient_scale * gradient[i]);
      const float momentum = t.momentum * m[i] + g;
      m[i] = momentum;
      update[i] = t.nesterov ? g + t.momentum * momentum : momentum;
    }
    if (t.square_sums) t.square_sums[chunk] = sum_of_squares(update + begin, end - begin);
  }
}

void muon_apply(const MuonApplyTask& task, int64_t begin, int64_t end) {
  float* __restrict p = task.parameter;
  const float* __restrict update = task.update;
  const float keep = task.keep, step = task.step;
  publishing(p, task.published, begin, end, [=](int64_t first, int64_t last) {
#pragma omp simd
    for (int64_t i = first; i < last; ++i) p[i] = p[i] * keep - step * update[i];
  });
}

void square_sums(const float* in, int64_t elements, int64_t chunk, double* out, int64_t chunk_begin, int64_t chunk_end) {
  for (int64_t c = chunk_begin; c < chunk_end; ++c) out[c] = sum_of_squares(in + c * chunk, smaller(chunk, elements - c * chunk));
}

void chunk_sums(const float* in, int64_t elements, int64_t chunk, double* out, int64_t chunk_begin, int64_t chunk_end) {
  for (int64_t c = chunk_begin; c < chunk_end; ++c) {
    const float* from = in + c * chunk;
    const int64_t count = smaller(chunk, elements - c * chunk);
    LaneSums sums;
    int64_t i = 0;
    for (; i + sum_lanes <= count; i += sum_lanes)
#pragma omp simd
      for (int64_t j = 0; j < sum_lanes; ++j) sums.lane[j] += static_cast<double>(from[i + j]);
    for (int64_t j = 0; i + j < count; ++j) sums.lane[j] += static_cast<double>(from[i + j]);
    out[c] = sums.total();
  }
}

int64_t count_non_finite(const float* in, int64_t begin, int64_t end) {
  int64_t count = 0;
  constexpr int64_t block = 4096;  // 32-bit counters inside a block, so that the loop vectorises at full width
  for (int64_t first = begin; first < end; first += block) {
    const int64_t last = smaller(first + block, end);
    int32_t in_block = 0;
#pragma omp simd reduction(+ : in_block)
    for (int64_t i = first; i < last; ++i) in_block += !(__builtin_fabsf(in[i]) <= 3.402823466e+38f);
    count += in_block;
  }
  return count;
}

void narrow_to_bfloat16(const float* in, uint16_t* out, int64_t begin, int64_t end) {
  const float* __restrict from = in;
  uint16_t* __restrict to = out;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, from + i, sizeof bits);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, quiet = (bits >> 16) | 0x0040u;
    to[i] = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
  }
}

void widen_bfloat16(const uint16_t* in, float* out, int64_t begin, int64_t end) {
  const uint16_t* __restrict from = in;
  float* __restrict to = out;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const uint32_t bits = static_cast<uint32_t>(from[i]) << 16;
    __builtin_memcpy(to + i, &bits, sizeof bits);
  }
}

}  // namespace dmuon::DMUON_SIMD
