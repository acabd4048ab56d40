// The device language as plain C++ on the host: what nvcc gives a .cu file, for the subset that the kernels of
// src/backend/cuda use. Blocks run one after another on the device's thread (stream_queue.h), the threads of a block as plain
// calls that become fibers when they meet a barrier (fibers.h). Nothing here is thread-safe: kernels run on that thread only.
//
// Differences from a device that a kernel could notice: `name` of DMUON_SHARED is a pointer, not an array (sizeof differs);
// a * b + c is never contracted (use fmaf where it matters); __expf and its like are as exact as the host's functions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cstdint>
#include <functional>

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

// Queues `kernel`: `thread` is what each of its threads runs. The errors are the runtime's: invalid configuration (more than
// 1024 threads, a grid too wide in y or z), invalid value (more dynamic shared memory than the kernel has leave for), or the
// sticky error of earlier work. How large a kernel's shared variables are is known once it runs: with them too much shared
// memory becomes the sticky error.
cudaError_t launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                   std::function<void()> thread);

struct Coordinates {
  uint3 thread, block;
  dim3 block_size, grid_size;
};
extern Coordinates coordinates;  // of the thread that runs
extern uint64_t block_serial;    // counts the blocks that have begun in this process

// The block's shared memory. A variable is registered, and its contents poisoned, when the first thread of each block gets to
// it; `seen` is the serial number of the last block that did.
constexpr size_t shared_red_zone = 64;  // bytes behind each variable
void register_shared(const char* name, void* memory, size_t bytes, uint64_t& seen);
void* dynamic_shared();
template <class T>
T* shared_variable(const char* name, void* memory, size_t bytes, uint64_t& seen) {
  if (seen != block_serial) register_shared(name, memory, bytes, seen);
  return static_cast<T*>(memory);
}

// The lane of the calling thread in its warp.
int lane();
// All threads of the block meet here. A thread that ends, or waits elsewhere, while others wait here is an error of the kernel
// that names this place.
void synchronize_block(const char* file, int line);
// Gives `value` (at most 16 bytes) to the other lanes of `mask` once all of them that have not ended are at this place;
// returns a token for read_lane, valid until this lane's next exchange. `file` and `line` are what an error names.
unsigned exchange(unsigned mask, const void* value, size_t bytes, const char* file, int line);
const void* read_lane(unsigned token, int lane);
// Ends the kernel with an error.
[[noreturn]] void trap(const char* file, int line);

}  // namespace cuda_on_host

#define threadIdx (cuda_on_host::coordinates.thread)
#define blockIdx (cuda_on_host::coordinates.block)
#define blockDim (cuda_on_host::coordinates.block_size)
#define gridDim (cuda_on_host::coordinates.grid_size)
constexpr int warpSize = 32;

#define DMUON_SHARED(type, name, extent)                                                                    \
  alignas(128) static unsigned char name##_memory[sizeof(type) * (extent) + cuda_on_host::shared_red_zone]; \
  static uint64_t name##_seen = 0;                                                                          \
  type* const name = cuda_on_host::shared_variable<type>(#name, name##_memory, sizeof(type) * (extent), name##_seen)
#define DMUON_DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(cuda_on_host::dynamic_shared())

#include "cuda_on_host/language_math.h"
#include "cuda_on_host/language_warp.h"
