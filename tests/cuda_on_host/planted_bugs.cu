#include "cuda_on_host/planted_bugs.h"

#include "backend/cuda/device_language.h"

namespace planted {
namespace {

using dmuon::cuda::launch;

constexpr unsigned threads = 256;

dim3 blocks(int64_t count) { return dim3(static_cast<unsigned>((count + threads - 1) / threads)); }

__device__ int64_t self() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

template <bool barrier>
__global__ void sum_kernel(const float* x, float* y, int64_t count) {
  DMUON_SHARED(float, partial, threads);
  const int64_t i = self();
  partial[threadIdx.x] = i < count ? x[i] : 0;
  for (unsigned half = threads / 2; half > 0; half /= 2) {
    if (barrier) __syncthreads();
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
  }
  if (threadIdx.x == 0) y[blockIdx.x] = partial[0];
}

__global__ void barrier_in_branch_kernel(float* y) {
  if (threadIdx.x < 32) __syncthreads();
  y[threadIdx.x] = 1;
}

__global__ void two_barriers_kernel(float* y) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    y[threadIdx.x] = 1;
    __syncthreads();
  }
}

__global__ void reverse_kernel(float* y, int times, bool between) {
  DMUON_DYNAMIC_SHARED(float, tile);
  const int64_t i = self();
  const unsigned t = threadIdx.x;
  for (int k = 0; k < times; ++k) {
    tile[t] = y[i];
    __syncthreads();
    y[i] = tile[threads - 1 - t];
    if (between) __syncthreads();
  }
}

__global__ void copy_kernel(const float* x, float* y, int64_t count) {
  if (const int64_t i = self(); i < count) y[i] = x[i];
}

__global__ void copy_from_before_kernel(const float* x, float* y, int64_t count) {
  if (const int64_t i = self(); i < count) y[i] = i > 0 ? x[i] : x[i - 1];
}

__global__ void copy_by_four_kernel(const float* x, float* y, int64_t count) {
  if (const int64_t i = self() * 4; i < count) *reinterpret_cast<float4*>(y + i) = *reinterpret_cast<const float4*>(x + i);
}

__global__ void short_shared_kernel(const float* x, float* y, int64_t count) {
  DMUON_SHARED(float, tile, threads - 1);
  const int64_t i = self();
  tile[threadIdx.x] = i < count ? x[i] : 0;
  __syncthreads();
  if (i < count) y[i] = tile[threadIdx.x];
}

__global__ void unwritten_kernel(float* y) {
  DMUON_SHARED(float, tile, 64);
  if (threadIdx.x != 5) tile[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += tile[i];
  y[0] = sum;
}

__global__ void copy_without_test_kernel(const float* x, float* y) { y[self()] = x[self()]; }

__global__ void warp_sum_kernel(float* y, unsigned mask, unsigned lanes) {
  if (threadIdx.x >= lanes) return;
  float value = 1;
  for (int by = 16; by > 0; by /= 2) value += __shfl_xor_sync(mask, value, by);
  y[threadIdx.x] = value;
}

__global__ void add_kernel(float* x, float value, int64_t count) {
  if (const int64_t i = self(); i < count) x[i] += value;
}

__global__ void accumulate_kernel(const float* x, float* y, int64_t count) {
  if (const int64_t i = self(); i < count) y[i] += x[i];
}

__global__ void beside_variables_kernel() {
  DMUON_SHARED(float, variables, 64);
  variables[threadIdx.x] = 1;
}

__global__ void nothing_kernel() {}

}  // namespace

void block_sums(cudaStream_t stream, const float* x, float* y, int64_t count) {
  launch({"block_sums", blocks(count), threads, 0, stream}, sum_kernel<true>, x, y, count);
}
void block_sums_without_barrier(cudaStream_t stream, const float* x, float* y, int64_t count) {
  launch({"block_sums_without_barrier", blocks(count), threads, 0, stream}, sum_kernel<false>, x, y, count);
}
void barrier_in_branch(cudaStream_t stream, float* y) { launch({"barrier_in_branch", 1, 64, 0, stream}, barrier_in_branch_kernel, y); }
void two_barriers(cudaStream_t stream, float* y) { launch({"two_barriers", 1, 64, 0, stream}, two_barriers_kernel, y); }
void reverse(cudaStream_t stream, float* y, int64_t count) {
  launch({"reverse", blocks(count), threads, threads * sizeof(float), stream}, reverse_kernel, y, 3, true);
}
void reverse_twice_in_place(cudaStream_t stream, float* y, int64_t count) {
  launch({"reverse_twice_in_place", blocks(count), threads, threads * sizeof(float), stream}, reverse_kernel, y, 3, false);
}
void copy(cudaStream_t stream, const float* x, float* y, int64_t count) {
  launch({"copy", blocks(count), threads, 0, stream}, copy_kernel, x, y, count);
}
void copy_one_too_many(cudaStream_t stream, const float* x, float* y, int64_t count) {
  launch({"copy_one_too_many", blocks(count + 1), threads, 0, stream}, copy_kernel, x, y, count + 1);
}
void copy_from_before(cudaStream_t stream, const float* x, float* y, int64_t count) {
  launch({"copy_from_before", blocks(count), threads, 0, stream}, copy_from_before_kernel, x, y, count);
}
void copy_by_four(cudaStream_t stream, const float* x, float* y, int64_t count) {
  launch({"copy_by_four", blocks((count + 3) / 4), threads, 0, stream}, copy_by_four_kernel, x, y, count);
}
void copy_through_short_shared(cudaStream_t stream, const float* x, float* y, int64_t count) {
  launch({"copy_through_short_shared", blocks(count), threads, 0, stream}, short_shared_kernel, x, y, count);
}
void sum_of_unwritten_shared(cudaStream_t stream, float* y) { launch({"sum_of_unwritten_shared", 1, 64, 0, stream}, unwritten_kernel, y); }
void copy_grid_too_small(cudaStream_t stream, const float* x, float* y, int64_t count) {
  launch({"copy_grid_too_small", dim3(blocks(count).x - 1), threads, 0, stream}, copy_kernel, x, y, count);
}
void copy_grid_too_large(cudaStream_t stream, const float* x, float* y, int64_t count) {
  launch({"copy_grid_too_large", dim3(blocks(count).x + 1), threads, 0, stream}, copy_without_test_kernel, x, y);
}
void warp_sum(cudaStream_t stream, float* y) { launch({"warp_sum", 1, 32, 0, stream}, warp_sum_kernel, y, ~0u, 32u); }
void warp_sum_with_short_mask(cudaStream_t stream, float* y) {
  launch({"warp_sum_with_short_mask", 1, 32, 0, stream}, warp_sum_kernel, y, 0xffffu, 32u);
}
void warp_sum_of_half(cudaStream_t stream, float* y) { launch({"warp_sum_of_half", 1, 32, 0, stream}, warp_sum_kernel, y, ~0u, 16u); }
void add(cudaStream_t stream, float* x, float value, int64_t count) {
  launch({"add", blocks(count), threads, 0, stream}, add_kernel, x, value, count);
}
void accumulate(cudaStream_t stream, const float* x, float* y, int64_t count) {
  launch({"accumulate", blocks(count), threads, 0, stream}, accumulate_kernel, x, y, count);
}
void with_threads(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes) {
  launch({"with_threads", grid, block, shared_bytes, stream}, nothing_kernel);
}

void beside_variables(cudaStream_t stream, size_t shared_bytes) {
  launch({"beside_variables", dim3(2), dim3(64), shared_bytes, stream}, beside_variables_kernel);
}
void beside_variables_without_leave(cudaStream_t stream, size_t shared_bytes) {
  static const char other_kernel = 0;  // stands for its address: one that nobody asked leave for
  dmuon::cuda::check_kernel(
      cuda_on_host::launch("beside_variables", &other_kernel, dim3(2), dim3(64), shared_bytes, stream, [] { beside_variables_kernel(); }),
      {"beside_variables", dim3(2), dim3(64), shared_bytes, stream});
}

}  // namespace planted
