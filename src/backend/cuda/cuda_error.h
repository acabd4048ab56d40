// Errors of the CUDA runtime as typed errors.
#pragma once

#include <cuda_runtime_api.h>

#include <string>

namespace dmuon::cuda {

// Where and how wide a kernel runs. `name` is the kernel's, for error messages.
struct Launch {
  const char* name;
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic
  cudaStream_t stream = nullptr;
};

// DeviceError "<what>: <name of the error>: <its description>" unless `status` is success.
void check(cudaError_t status, const std::string& what);
// The same for the start of a kernel: names it, its grid and its block.
void check_kernel(cudaError_t status, const Launch& launch);

}  // namespace dmuon::cuda
