// First form: everything at once on the calling thread, one thread of a block after another.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "cuda_on_host/fibers.h"
#include "cuda_on_host/language.h"

namespace cuda_on_host {

cudaError_t launch(const char* name, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t, std::function<void()> thread) {
  static std::mutex mutex;
  static uint64_t serial = 0;
  const std::lock_guard lock(mutex);
  ++serial;
  const Report report = run_kernel({name, grid, block, shared_bytes, std::move(thread)}, static_cast<Order>(serial % 3), serial);
  if (report.error != cudaSuccess) std::fprintf(stderr, "cuda_on_host: %s\n", report.text.c_str());
  return report.error;
}

}  // namespace cuda_on_host

extern "C" {
cudaError_t cudaMalloc(void** p, size_t n) {
  *p = std::aligned_alloc(256, (n + 255) / 256 * 256);
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* p) {
  std::free(p);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* d, const void* s, size_t n, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(d, s, n);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* d, int v, size_t n, cudaStream_t) {
  std::memset(d, v, n);
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned, int) {
  *s = static_cast<cudaStream_t>(std::malloc(1));
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  std::free(s);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t f, void* data) {
  f(data);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  *e = static_cast<cudaEvent_t>(std::malloc(1));
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  std::free(e);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -1;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* n) {
  *n = 16;  // ranks of a test have one each
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
  std::memset(p, 0, sizeof *p);
  std::strcpy(p->name, "host stand-in");
  p->major = 9, p->multiProcessorCount = 4;
  p->uuid.bytes[0] = static_cast<char>(device);
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t) { return "error"; }
const char* cudaGetErrorString(cudaError_t) { return "of the stand-in"; }
}
