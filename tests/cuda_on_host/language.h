// The device language as plain C++ on the host: blocks one after another, the threads of a block as fibers.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __launch_bounds__
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)

namespace cuda_on_host {

// Queues a kernel: `thread` is what each of its threads runs.
cudaError_t launch(const char* name, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, std::function<void()> thread);

struct Coordinates {
  uint3 thread, block;
  dim3 block_size, grid_size;
};
extern thread_local Coordinates coordinates;
void* dynamic_shared();
int lane();
void synchronize_block(const char* file, int line);
// Gives `value` to the other lanes of `mask`; returns a token for read_lane, valid until this lane's next exchange.
unsigned exchange(unsigned mask, const void* value, size_t bytes, const char* file, int line);
const void* read_lane(unsigned token, int lane);

}  // namespace cuda_on_host

#define threadIdx (cuda_on_host::coordinates.thread)
#define blockIdx (cuda_on_host::coordinates.block)
#define blockDim (cuda_on_host::coordinates.block_size)
#define gridDim (cuda_on_host::coordinates.grid_size)
constexpr int warpSize = 32;

#define DMUON_SHARED(type, name, extent) static thread_local type name[extent]
#define DMUON_DYNAMIC_SHARED(type, name) type* name = static_cast<type*>(cuda_on_host::dynamic_shared())

#define CUDA_ON_HOST_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()
inline void __syncthreads(CUDA_ON_HOST_PLACE) { cuda_on_host::synchronize_block(file, line); }
inline void __syncwarp(unsigned mask = ~0u, CUDA_ON_HOST_PLACE) {
  const char nothing = 0;
  cuda_on_host::exchange(mask, &nothing, 1, file, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32, CUDA_ON_HOST_PLACE) {
  const unsigned token = cuda_on_host::exchange(mask, &value, sizeof value, file, line);
  const int self = cuda_on_host::lane(), other = self ^ by;
  T result;
  std::memcpy(&result, cuda_on_host::read_lane(token, (other & ~(width - 1)) == (self & ~(width - 1)) ? other : self), sizeof result);
  return result;
}
