// What the passes over parameters, the reductions and the norms of the optimizer family share. Their files are compiled without
// contraction to fused multiply-adds, like the passes of the CPU backend, so that both round alike.
#pragma once

#include <type_traits>

#include "backend/cuda/optimizer_elements.h"
#include "dmuon/core/error.h"
#include "dmuon/core/tensor.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {

inline constexpr int pass_threads = 256, pass_groups = 4;  // groups of four elements for each thread
inline constexpr int64_t pass_elements = 4 * pass_threads * pass_groups;
inline constexpr int sum_threads = 512, sum_warps = sum_threads / 32;

// The sum of every thread's `value`, in one order: a tree within a warp, then warp after warp. Valid in thread 0.
__device__ inline double block_sum(double value) {
  DMUON_SHARED(double, of_warps, sum_warps);
  for (int by = 16; by > 0; by /= 2) value += __shfl_xor_sync(~0u, value, by);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return 0.0;
  double sum = 0.0;
  for (int warp = 0; warp < sum_warps; ++warp) sum += of_warps[warp];
  return sum;
}

// Calls body(i, count) for this thread's groups of up to four elements of the chunk [begin, end): every sum_threads-th.
template <class Body>
__device__ void for_groups(int64_t begin, int64_t end, const Body& body) {
#pragma unroll 2
  for (int64_t i = begin + 4 * static_cast<int64_t>(threadIdx.x); i < end; i += 4 * sum_threads)
    body(i, static_cast<int>(end - i < 4 ? end - i : 4));
}

__device__ inline int64_t end_of_chunk(int64_t elements, int64_t chunk) {
  const int64_t end = (static_cast<int64_t>(blockIdx.x) + 1) * chunk;
  return end < elements ? end : elements;
}

// Calls body(pointer to the elements, as the device names their type) for a tensor of any floating dtype.
template <class Body>
void with_elements(const Tensor& tensor, const Body& body) {
  switch (tensor.dtype()) {
    case DType::float32:
      return body(tensor.data<float>());
    case DType::float64:
      return body(tensor.data<double>());
    case DType::float16:
      return body(reinterpret_cast<__half*>(tensor.data<float16>()));
    case DType::bfloat16:
      return body(reinterpret_cast<__nv_bfloat16*>(tensor.data<bfloat16>()));
    default:
      throw ShapeError(text("an optimizer pass over ", tensor.to_string(), ": expected a floating dtype"));
  }
}

template <class... T>
bool all_movable(const T*... pointers) {
  return (movable_by_four(pointers) && ...);
}

}  // namespace dmuon::cuda
