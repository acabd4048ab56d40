// Sums and maxima over the threads of a warp or a block, in an order that only the number of threads decides.
#pragma once

#include <cmath>

#include "backend/cuda/device_language.h"

namespace dmuon::cuda {

constexpr unsigned all_lanes = 0xffffffffu;

// Over groups of `width` neighbouring lanes (a power of two); every lane gets the result, the same bits in all.
template <int width = 32>
__device__ inline float warp_sum(float value) {
  for (int by = width / 2; by > 0; by /= 2) value += __shfl_xor_sync(all_lanes, value, by);
  return value;
}
template <int width = 32>
__device__ inline float warp_max(float value) {
  for (int by = width / 2; by > 0; by /= 2) value = fmaxf(value, __shfl_xor_sync(all_lanes, value, by));
  return value;
}

// Over the threads of a row of the block (equal threadIdx.y; blockDim.x a multiple of 32): warps are added in order. Every
// thread of the block takes part; every thread of the row gets the sum.
__device__ inline float row_sum(float value) {
  DMUON_SHARED(float, of_warp, 32);
  value = warp_sum(value);
  const unsigned warps = blockDim.x / 32, first = threadIdx.y * warps;
  if (warps == 1) return value;
  __syncthreads();  // an earlier sum may still be read
  if (threadIdx.x % 32 == 0) of_warp[first + threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (unsigned w = 0; w < warps; ++w) sum += of_warp[first + w];
  return sum;
}

// Two sums at once.
__device__ inline float2 row_sums(float2 values) {
  DMUON_SHARED(float, of_warp, 64);
  values.x = warp_sum(values.x), values.y = warp_sum(values.y);
  const unsigned warps = blockDim.x / 32, first = threadIdx.y * warps;
  if (warps == 1) return values;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    of_warp[first + threadIdx.x / 32] = values.x;
    of_warp[32 + first + threadIdx.x / 32] = values.y;
  }
  __syncthreads();
  float2 sums{0, 0};
  for (unsigned w = 0; w < warps; ++w) sums.x += of_warp[first + w], sums.y += of_warp[32 + first + w];
  return sums;
}

}  // namespace dmuon::cuda
