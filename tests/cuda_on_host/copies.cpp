// Copies and fills of the runtime.
//
// From pageable memory the bytes are taken when the call is made, to pageable memory the call waits, as CUDA documents; pinned
// memory is read and written when the stream gets there.
#include <cuda_runtime_api.h>

#include <cstring>
#include <memory>
#include <vector>

#include "cuda_on_host/device_memory.h"
#include "cuda_on_host/device_queue.h"
#include "cuda_on_host/errors.h"
#include "cuda_on_host/graphs.h"
#include "cuda_on_host/stream_queue.h"
#include "dmuon/core/text.h"

using dmuon::text;
using namespace cuda_on_host;

namespace {

enum class Kind { device, pinned, pageable };

Kind kind_of(const void* address) {
  return is_device_memory(address) ? Kind::device : is_pinned_memory(address) ? Kind::pinned : Kind::pageable;
}

bool captured(cudaStream_t handle) {
  DeviceQueue& queue = DeviceQueue::only();
  const auto stream = queue.stream_of(handle);
  const auto lock = queue.lock();
  return stream->capture != nullptr;
}

cudaError_t copy_error(const void* destination, const void* source, size_t bytes, cudaMemcpyKind kind) {
  const bool to_device = is_device_memory(destination), from_device = is_device_memory(source);
  const bool right = kind == cudaMemcpyDefault || (to_device == (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) &&
                                                   from_device == (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice));
  if (!right) return remember(cudaErrorInvalidValue, "a copy whose kind does not fit where its addresses are");
  for (const void* address : {destination, source})
    if (const std::string error = range_error(address, bytes); !error.empty())
      return remember(cudaErrorInvalidValue, text("a copy out of bounds: ", error));
  return cudaSuccess;
}

// On the device's thread.
void copy_now(void* destination, const void* source, size_t bytes) {
  for (const void* address : {static_cast<const void*>(destination), source})
    if (const std::string error = range_error(address, bytes); !error.empty())
      return fail_device(cudaErrorIllegalAddress, text("a queued copy out of bounds: ", error));
  std::memmove(destination, source, bytes);
  if (!is_device_memory(destination)) return;
  // Poison that is copied stays poison.
  const unsigned char* from = is_device_memory(source) ? shadow_of(source) : nullptr;
  if (from != nullptr)
    std::memcpy(shadow_of(destination), from, bytes);
  else
    mark_written(destination, bytes);
}

}  // namespace

extern "C" {

cudaError_t cudaMemcpyAsync(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (const cudaError_t error = call_error("cudaMemcpyAsync"); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = copy_error(destination, source, bytes, kind); error != cudaSuccess) return error;
  const bool in_capture = captured(stream);
  if (!in_capture && kind_of(source) == Kind::pageable) {
    const auto* from = static_cast<const unsigned char*>(source);
    auto staged = std::make_shared<std::vector<unsigned char>>(from, from + bytes);
    const cudaError_t error =
        queue_work(stream, "cudaMemcpyAsync", [destination, staged] { copy_now(destination, staged->data(), staged->size()); });
    if (error != cudaSuccess || kind_of(destination) != Kind::pageable) return error;
    return cudaStreamSynchronize(stream);
  }
  const cudaError_t error = queue_work(stream, "cudaMemcpyAsync", [destination, source, bytes] { copy_now(destination, source, bytes); });
  if (error != cudaSuccess || in_capture || kind_of(destination) != Kind::pageable) return error;
  return cudaStreamSynchronize(stream);
}

cudaError_t cudaMemcpy(void* destination, const void* source, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = forbidden_in_capture("cudaMemcpy"); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaMemcpyAsync(destination, source, bytes, kind, nullptr); error != cudaSuccess) return error;
  return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemcpy2DAsync(void* destination, size_t to_pitch, const void* source, size_t from_pitch, size_t width, size_t height,
                              cudaMemcpyKind kind, cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) return remember(cudaErrorInvalidValue);
  for (size_t row = 0; row < height; ++row) {
    const cudaError_t error = cudaMemcpyAsync(static_cast<char*>(destination) + row * to_pitch,
                                              static_cast<const char*>(source) + row * from_pitch, width, kind, stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* address, int value, size_t bytes, cudaStream_t stream) {
  if (const cudaError_t error = call_error("cudaMemsetAsync"); error != cudaSuccess) return error;
  if (bytes == 0) return cudaSuccess;
  if (!is_device_memory(address) && !is_pinned_memory(address)) return remember(cudaErrorInvalidValue, "cudaMemset of pageable memory");
  if (const std::string error = range_error(address, bytes); !error.empty())
    return remember(cudaErrorInvalidValue, text("cudaMemset out of bounds: ", error));
  return queue_work(stream, "cudaMemsetAsync", [address, value, bytes] {
    if (const std::string error = range_error(address, bytes); !error.empty())
      return fail_device(cudaErrorIllegalAddress, text("a queued cudaMemset out of bounds: ", error));
    std::memset(address, value, bytes);
    mark_written(address, bytes);
  });
}

cudaError_t cudaMemset(void* address, int value, size_t bytes) {
  if (const cudaError_t error = forbidden_in_capture("cudaMemset"); error != cudaSuccess) return error;
  return cudaMemsetAsync(address, value, bytes, nullptr);
}

}  // extern "C"
