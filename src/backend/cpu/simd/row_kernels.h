// Arguments of the row-wise hot loops. All matrices are [rows, columns], contiguous; pointers may be null where the tensor
// is optional in kernels.h. "Partial" column sums belong to one block of rows and are overwritten.
#pragma once

#include <cstdint>

#include "backend/cpu/simd/dropout.h"

namespace dmuon::simd {

struct NormalizationForwardTask {
  bool rms = false;
  float epsilon = 0;
  int64_t columns = 0;
  const float *input = nullptr, *branch = nullptr, *branch_bias = nullptr;
  Dropout dropout;
  float* residual = nullptr;
  const float *weight = nullptr, *bias = nullptr;
  float *output = nullptr, *mean = nullptr, *inverse_deviation = nullptr;
};

struct NormalizationBackwardTask {
  bool rms = false;
  int64_t columns = 0;
  const float *d_output = nullptr, *d_residual = nullptr, *normalized_input = nullptr;
  const float *mean = nullptr, *inverse_deviation = nullptr, *weight = nullptr;
  Dropout dropout;
  float *d_input = nullptr, *d_branch = nullptr;
};
// Partial column sums of one block of rows, [columns] each; those not wanted are null.
struct NormalizationPartials {
  float *d_weight = nullptr, *d_bias = nullptr, *d_branch_bias = nullptr;
};

enum class Activation : uint8_t { gelu, gelu_tanh, relu_squared };
struct ActivationTask {
  Activation kind = Activation::gelu;
  int64_t columns = 0;
  const float *input = nullptr, *bias = nullptr;
  float* output = nullptr;          // forward
  const float* d_output = nullptr;  // backward
  float* d_input = nullptr;
};

struct SwiGluTask {
  const float *gate = nullptr, *up = nullptr;
  float* output = nullptr;          // forward
  const float* d_output = nullptr;  // backward
  float *d_gate = nullptr, *d_up = nullptr;
};

// Heads [heads] of `channels` each, of one row per position; row r turns by the angles in row places[r] of the tables.
struct RotaryTask {
  int64_t heads = 0, channels = 0;
  const float *cosines = nullptr, *sines = nullptr;  // [places, channels / 2]
  const int32_t* places = nullptr;                   // [rows]
  const float* input = nullptr;
  const float* weight = nullptr;  // with it every head is normalised first
  float epsilon = 0;
  float* output = nullptr;
  float* inverse_deviation = nullptr;  // written by the forward where wanted, read by the backward with a weight
  const float* d_output = nullptr;     // backward
  float* d_input = nullptr;
};

struct EmbeddingTask {
  int64_t columns = 0;
  const int32_t *tokens = nullptr, *positions = nullptr;
  const float *token_table = nullptr, *position_table = nullptr;
  Dropout dropout;
  float* output = nullptr;          // forward
  const float* d_output = nullptr;  // backward
};

struct CrossEntropyTask {
  int64_t columns = 0, classes = 0;
  float* logits = nullptr;
  const int32_t* targets = nullptr;
  float* losses = nullptr;
  bool write_gradient = false;
  float gradient_scale = 1;
};

}  // namespace dmuon::simd
