// What a .cu file needs of the device language. nvcc gives the real one; compiled as plain C++ (test builds only) the file
// runs on the host against tests/cuda_on_host/language.h, so kernels are written once and stay within what both offer:
//
// - started by launch() below, never by <<<>>>;
// - shared memory by DMUON_SHARED(type, name, extent) or DMUON_DYNAMIC_SHARED(type, name): `name[i]` is one element and
//   `&name[i]` a pointer, as of an array of one dimension; the host watches element accesses for races;
// - instructions that the host cannot run (mma, cp.async, ldmatrix) only inside functions of mma.h and copy_async.h, whose
//   host form computes the same tile.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#define DMUON_SHARED(type, name, extent) __shared__ __align__(16) type name[extent]
#define DMUON_DYNAMIC_SHARED(type, name)                          \
  extern __shared__ __align__(16) unsigned char dmuon_dynamic_[]; \
  type* name = reinterpret_cast<type*>(dmuon_dynamic_)
#else
#include "cuda_on_host/language.h"
#endif

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/shared_memory_leave.h"

namespace dmuon::cuda {

// Starts `kernel` and returns; DeviceError naming the kernel, its grid and the cause when it cannot start. An empty grid is
// nothing to do.
template <class... Parameters, class... Arguments>
void launch(const Launch& how, void (*kernel)(Parameters...), Arguments&&... arguments) {
  if (how.grid.x == 0 || how.grid.y == 0 || how.grid.z == 0) return;
  const auto* const address = reinterpret_cast<const void*>(kernel);
  if (how.shared_bytes > dynamic_without_leave) take_all_shared_memory(address, how);
#ifdef __CUDACC__
  cudaLaunchConfig_t configuration{};
  configuration.gridDim = how.grid;
  configuration.blockDim = how.block;
  configuration.dynamicSmemBytes = how.shared_bytes;
  configuration.stream = how.stream;
  check_kernel(cudaLaunchKernelEx(&configuration, kernel, static_cast<Parameters>(arguments)...), how);
#else
  check_kernel(cuda_on_host::launch(how.name, address, how.grid, how.block, how.shared_bytes, how.stream,
                                    [kernel, ... values = static_cast<Parameters>(arguments)] { kernel(values...); }),
               how);
#endif
}

}  // namespace dmuon::cuda
