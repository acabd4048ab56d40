#include "cuda_on_host/devices.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>
#include <vector>

#include "cuda_on_host/device_queue.h"
#include "cuda_on_host/errors.h"
#include "cuda_on_host/shared_memory.h"
#include "cuda_on_host/stream_queue.h"

namespace cuda_on_host {
namespace {

thread_local int current = 0;

long long setting(const char* name, long long otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == 0 ? otherwise : std::atoll(value);
}

// Physical numbers; an entry that is no device ends the list.
std::vector<int> visible() {
  const int all = static_cast<int>(setting("CUDA_ON_HOST_DEVICES", 16));
  std::vector<int> devices;
  const char* list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int i = 0; i < all; ++i) devices.push_back(i);
    return devices;
  }
  std::istringstream in(list);
  for (std::string entry; std::getline(in, entry, ',');) {
    char* end = nullptr;
    const long device = std::strtol(entry.c_str(), &end, 10);
    if (end == entry.c_str() || device < 0 || device >= all) break;
    devices.push_back(static_cast<int>(device));
  }
  return devices;
}

cudaError_t usable(int device) {
  if (planned("driver") || planned("old_driver")) return remember(cudaErrorInsufficientDriver);
  const int count = visible_devices();
  if (count == 0) return remember(cudaErrorNoDevice);
  return device >= 0 && device < count ? cudaSuccess : remember(cudaErrorInvalidDevice);
}

}  // namespace

int current_device() { return current; }
int visible_devices() { return static_cast<int>(visible().size()); }
size_t device_memory_bytes() { return static_cast<size_t>(setting("CUDA_ON_HOST_MEMORY", 16LL << 30)); }

}  // namespace cuda_on_host

using namespace cuda_on_host;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  if (const cudaError_t error = call_error("cudaGetDeviceCount"); error != cudaSuccess) return error;
  if (const cudaError_t error = usable(0); error != cudaSuccess) return error;
  *count = visible_devices();
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t error = call_error("cudaSetDevice"); error != cudaSuccess) return error;
  if (const cudaError_t error = usable(device); error != cudaSuccess) return error;
  current = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return sticky_error();
}

// The toolkit's version; 0 without a driver and an old one for "old_driver".
cudaError_t cudaDriverGetVersion(int* version) {
  *version = planned("driver") ? 0 : planned("old_driver") ? 11040 : CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  if (const cudaError_t error = call_error("cudaGetDeviceProperties"); error != cudaSuccess) return error;
  if (const cudaError_t error = usable(device); error != cudaSuccess) return error;
  std::memset(p, 0, sizeof *p);
  std::strcpy(p->name, "host stand-in");
  p->major = 9;
  p->multiProcessorCount = 4;
  p->warpSize = 32;
  p->totalGlobalMem = device_memory_bytes();
  p->sharedMemPerBlock = 48 * 1024;
  p->sharedMemPerBlockOptin = static_cast<size_t>(setting("CUDA_ON_HOST_SHARED", most_shared_bytes));
  p->sharedMemPerMultiprocessor = 228 * 1024;
  p->maxThreadsPerBlock = 1024;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024, p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 0x7fffffff, p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->l2CacheSize = 50 << 20;
  p->memoryBusWidth = 5120;
  p->streamPrioritiesSupported = p->concurrentKernels = p->unifiedAddressing = p->asyncEngineCount = 1;
  p->memoryPoolsSupported = 1;
  const int physical = visible()[static_cast<size_t>(device)];
  p->uuid.bytes[0] = static_cast<char>(physical);
  p->pciBusID = physical + 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p{};
  if (const cudaError_t error = cudaGetDeviceProperties(&p, device); error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
      return *value = p.major, cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      return *value = p.minor, cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      return *value = p.multiProcessorCount, cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return *value = static_cast<int>(p.sharedMemPerBlockOptin), cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return *value = static_cast<int>(p.sharedMemPerBlock), cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock:
      return *value = p.maxThreadsPerBlock, cudaSuccess;
    case cudaDevAttrWarpSize:
      return *value = p.warpSize, cudaSuccess;
    case cudaDevAttrL2CacheSize:
      return *value = p.l2CacheSize, cudaSuccess;
    case cudaDevAttrMemoryPoolsSupported:
      return *value = p.memoryPoolsSupported, cudaSuccess;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
      return *value = 1000000, cudaSuccess;
    default:
      return remember(cudaErrorNotSupported, "cudaDeviceGetAttribute: an attribute that the stand-in does not know");
  }
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (const cudaError_t error = usable(device); error != cudaSuccess) return error;
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", visible()[static_cast<size_t>(device)] + 1);
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return sticky_error();
}

// Waits, and forgets the sticky error: tests of failures go on in the same process.
cudaError_t cudaDeviceReset() {
  DeviceQueue& queue = DeviceQueue::only();
  auto lock = queue.lock();
  queue.wait_for_all(lock);
  clear_errors();
  return cudaSuccess;
}

}  // extern "C"
