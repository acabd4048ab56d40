// Attributes of kernels: leave for dynamic shared memory, per kernel and device.
#include <map>
#include <mutex>
#include <utility>

#include "cuda_on_host/devices.h"
#include "cuda_on_host/errors.h"
#include "cuda_on_host/shared_memory.h"
#include "dmuon/core/text.h"

namespace cuda_on_host {
namespace {

struct Leave {
  std::mutex mutex;
  std::map<std::pair<const void*, int>, size_t> bytes;
};

Leave& leave() {
  static Leave only;
  return only;
}

}  // namespace

size_t allowed_dynamic_bytes(const void* kernel) {
  const std::lock_guard lock(leave().mutex);
  const auto found = leave().bytes.find({kernel, current_device()});
  return found == leave().bytes.end() ? common_shared_bytes : found->second;
}

}  // namespace cuda_on_host

using namespace cuda_on_host;

extern "C" {

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (const cudaError_t error = call_error("cudaFuncSetAttribute"); error != cudaSuccess) return error;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
    return remember(cudaErrorNotSupported, "cudaFuncSetAttribute: an attribute that the stand-in does not know");
  if (value < 0 || static_cast<size_t>(value) > most_shared_bytes)
    return remember(cudaErrorInvalidValue, dmuon::text("cudaFuncSetAttribute: leave for ", value,
                                                       " bytes of dynamic shared memory; a block has ", most_shared_bytes));
  const std::lock_guard lock(leave().mutex);
  leave().bytes[{kernel, current_device()}] = static_cast<size_t>(value);
  return cudaSuccess;
}

// Shared variables are known only while a kernel runs, so that none are told here; the run checks their sum with dynamic memory.
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  if (const cudaError_t error = call_error("cudaFuncGetAttributes"); error != cudaSuccess) return error;
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->maxDynamicSharedSizeBytes = static_cast<int>(allowed_dynamic_bytes(kernel));
  return cudaSuccess;
}

}  // extern "C"
