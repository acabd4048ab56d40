#include "cuda_on_host/errors.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>

#include "cuda_on_host/stream_queue.h"

namespace cuda_on_host {
namespace {

struct Errors {
  std::mutex mutex;
  cudaError_t sticky = cudaSuccess;
  std::string text;  // of the sticky error, as cudaGetErrorString gives it
  std::map<std::string, int> planned, calls;
  bool read = false;
};

Errors& errors() {
  static auto* only = new Errors;
  return *only;
}

thread_local cudaError_t last = cudaSuccess;

void parse(Errors& e, const char* plan) {
  e.read = true;
  e.planned.clear();
  e.calls.clear();
  std::istringstream in(plan == nullptr ? "" : plan);
  for (std::string entry; std::getline(in, entry, ',');) {
    const size_t colon = entry.rfind(':');
    e.planned[entry.substr(0, colon)] = colon == std::string::npos ? 1 : std::atoi(entry.c_str() + colon + 1);
  }
}

}  // namespace

void plan_failures(const std::string& text) {
  const std::lock_guard lock(errors().mutex);
  parse(errors(), text.c_str());
}

bool planned(const std::string& name) {
  Errors& e = errors();
  const std::lock_guard lock(e.mutex);
  if (!e.read) parse(e, std::getenv("CUDA_ON_HOST_FAIL"));
  return e.planned.count(name) != 0;
}

bool fails_now(const std::string& name) {
  if (!planned(name)) return false;
  Errors& e = errors();
  const std::lock_guard lock(e.mutex);
  return ++e.calls[name] == e.planned[name];
}

void set_sticky_error(cudaError_t error, const std::string& text) {
  Errors& e = errors();
  const std::lock_guard lock(e.mutex);
  std::fprintf(stderr, "cuda_on_host: %s\n", text.c_str());
  if (e.sticky != cudaSuccess) return;
  e.sticky = error;
  e.text = text;
}

void clear_errors() {
  Errors& e = errors();
  const std::lock_guard lock(e.mutex);
  e.sticky = last = cudaSuccess;
}

cudaError_t sticky_error() {
  const std::lock_guard lock(errors().mutex);
  return errors().sticky;
}

cudaError_t call_error(const char* function) {
  if (const cudaError_t error = sticky_error(); error != cudaSuccess) return last = error;
  if (!fails_now(function)) return cudaSuccess;
  return last = std::strstr(function, "lloc") != nullptr ? cudaErrorMemoryAllocation : cudaErrorUnknown;
}

cudaError_t remember(cudaError_t error, const std::string& text) {
  if (!text.empty()) std::fprintf(stderr, "cuda_on_host: %s\n", text.c_str());
  if (error != cudaSuccess) last = error;
  return error;
}

cudaError_t last_error(bool forget) {
  const cudaError_t sticky = sticky_error();
  const cudaError_t error = sticky != cudaSuccess ? sticky : last;
  if (forget) last = cudaSuccess;
  return error;
}

}  // namespace cuda_on_host

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
#define CUDA_ON_HOST_NAME(name) \
  case name:                    \
    return #name;
    CUDA_ON_HOST_NAME(cudaSuccess)
    CUDA_ON_HOST_NAME(cudaErrorInvalidValue)
    CUDA_ON_HOST_NAME(cudaErrorMemoryAllocation)
    CUDA_ON_HOST_NAME(cudaErrorInvalidConfiguration)
    CUDA_ON_HOST_NAME(cudaErrorInvalidMemcpyDirection)
    CUDA_ON_HOST_NAME(cudaErrorInsufficientDriver)
    CUDA_ON_HOST_NAME(cudaErrorDevicesUnavailable)
    CUDA_ON_HOST_NAME(cudaErrorNoDevice)
    CUDA_ON_HOST_NAME(cudaErrorInvalidDevice)
    CUDA_ON_HOST_NAME(cudaErrorInvalidResourceHandle)
    CUDA_ON_HOST_NAME(cudaErrorNotReady)
    CUDA_ON_HOST_NAME(cudaErrorIllegalAddress)
    CUDA_ON_HOST_NAME(cudaErrorLaunchTimeout)
    CUDA_ON_HOST_NAME(cudaErrorIllegalInstruction)
    CUDA_ON_HOST_NAME(cudaErrorLaunchFailure)
    CUDA_ON_HOST_NAME(cudaErrorNotPermitted)
    CUDA_ON_HOST_NAME(cudaErrorNotSupported)
    CUDA_ON_HOST_NAME(cudaErrorStreamCaptureUnsupported)
    CUDA_ON_HOST_NAME(cudaErrorStreamCaptureInvalidated)
    CUDA_ON_HOST_NAME(cudaErrorStreamCaptureMerge)
    CUDA_ON_HOST_NAME(cudaErrorStreamCaptureUnmatched)
    CUDA_ON_HOST_NAME(cudaErrorStreamCaptureUnjoined)
    CUDA_ON_HOST_NAME(cudaErrorStreamCaptureIsolation)
    CUDA_ON_HOST_NAME(cudaErrorStreamCaptureImplicit)
    CUDA_ON_HOST_NAME(cudaErrorCapturedEvent)
    CUDA_ON_HOST_NAME(cudaErrorStreamCaptureWrongThread)
    CUDA_ON_HOST_NAME(cudaErrorUnknown)
#undef CUDA_ON_HOST_NAME
    default:
      return "an error that the stand-in does not give";
  }
}

const char* cudaGetErrorString(cudaError_t error) {
  auto& e = cuda_on_host::errors();
  const std::lock_guard lock(e.mutex);
  if (error != cudaSuccess && error == e.sticky) return e.text.c_str();
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    default:
      return cudaGetErrorName(error);
  }
}

cudaError_t cudaGetLastError() { return cuda_on_host::last_error(true); }
cudaError_t cudaPeekAtLastError() { return cuda_on_host::last_error(false); }

}  // extern "C"
