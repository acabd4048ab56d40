// Device memory and errors for the stand-in's own tests.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>
#include <vector>

#include "dmuon/core/error.h"
#include "support/catch.h"

namespace cuda_on_host {

struct Buffer {
  explicit Buffer(size_t elements) : count(elements) { REQUIRE(cudaMalloc(reinterpret_cast<void**>(&data), count * 4) == cudaSuccess); }
  Buffer(size_t elements, float value) : Buffer(elements) { write(std::vector<float>(elements, value)); }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void write(const std::vector<float>& values) {
    REQUIRE(cudaMemcpy(data, values.data(), values.size() * 4, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  std::vector<float> read() const {
    std::vector<float> values(count);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
    REQUIRE(cudaMemcpy(values.data(), data, count * 4, cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }

  size_t count;
  float* data = nullptr;
};

struct StreamHandle {
  StreamHandle() { REQUIRE(cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, 0) == cudaSuccess); }
  ~StreamHandle() { cudaStreamDestroy(handle); }
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;
  operator cudaStream_t() const { return handle; }
  cudaStream_t handle = nullptr;
};

struct EventHandle {
  EventHandle() { REQUIRE(cudaEventCreateWithFlags(&handle, cudaEventDefault) == cudaSuccess); }
  ~EventHandle() { cudaEventDestroy(handle); }
  EventHandle(const EventHandle&) = delete;
  EventHandle& operator=(const EventHandle&) = delete;
  operator cudaEvent_t() const { return handle; }
  cudaEvent_t handle = nullptr;
};

// Runs the work and waits; what the sticky error says, after which the device is as new. Empty: no error.
inline std::string report_of(const std::function<void()>& work) {
  work();
  const cudaError_t error = cudaDeviceSynchronize();
  const std::string report = error == cudaSuccess ? "" : cudaGetErrorString(error);
  REQUIRE(cudaDeviceReset() == cudaSuccess);
  return report;
}

}  // namespace cuda_on_host
