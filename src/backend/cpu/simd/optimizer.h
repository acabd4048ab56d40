// Arguments of the optimizer passes, hyper-parameters rounded to float once. Passes work on elements [begin, end) and give
// the same bits whatever the range, and on every instruction set: their file is compiled without contraction to fused
// multiply-adds, so vector bodies and tails round alike.
#pragma once

#include <cstdint>

namespace dmuon::simd {

// Where the updated parameter goes a second time; at most one is set.
struct Published {
  float* float32 = nullptr;
  uint16_t* bfloat16 = nullptr;
};

struct AdamWTask {
  float *parameter = nullptr, *first_moment = nullptr, *second_moment = nullptr;
  const float* gradient = nullptr;
  float beta1, one_minus_beta1, beta2, one_minus_beta2, epsilon, gradient_scale;
  float decay;                // learning_rate * weight_decay
  float step;                 // learning_rate / correction1
  float inverse_sqrt_second;  // 1 / sqrt(correction2)
  Published published;
};
struct SgdTask {
  float *parameter = nullptr, *momentum_buffer = nullptr;
  const float* gradient = nullptr;
  float learning_rate, momentum, one_minus_dampening, weight_decay, gradient_scale;
  bool first_step = false, nesterov = false;
  Published published;
};
struct MuonMomentumTask {
  const float* gradient = nullptr;
  float *momentum_buffer = nullptr, *update = nullptr;
  double* square_sums = nullptr;  // optional, one per chunk
  int64_t chunk = 0, elements = 0;
  float momentum, gradient_factor, gradient_scale;  // gradient_factor: 1 or 1 - momentum
  bool nesterov = true;
};
struct MuonApplyTask {
  float* parameter = nullptr;
  const float* update = nullptr;
  float keep, step;  // 1 - learning_rate * weight_decay, learning_rate * scale
  Published published;
};

}  // namespace dmuon::simd
