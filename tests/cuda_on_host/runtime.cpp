// First form: everything at once on the calling thread, one thread of a block after another.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_on_host/language.h"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace cuda_on_host {

thread_local Coordinates coordinates;
void* dynamic_shared() {
  static thread_local unsigned char memory[232448];
  return memory;
}
int lane() { return 0; }
void synchronize_block(const char*, int) { std::abort(); }
unsigned exchange(unsigned, const void*, size_t, const char*, int) { std::abort(); }
const void* read_lane(unsigned, int) { return nullptr; }

cudaError_t launch(const char*, dim3 grid, dim3 block, size_t, cudaStream_t, std::function<void()> thread) {
  Coordinates& c = coordinates;
  c.grid_size = grid, c.block_size = block;
  for (c.block.z = 0; c.block.z < grid.z; ++c.block.z)
    for (c.block.y = 0; c.block.y < grid.y; ++c.block.y)
      for (c.block.x = 0; c.block.x < grid.x; ++c.block.x)
        for (c.thread.z = 0; c.thread.z < block.z; ++c.thread.z)
          for (c.thread.y = 0; c.thread.y < block.y; ++c.thread.y)
            for (c.thread.x = 0; c.thread.x < block.x; ++c.thread.x) thread();
  return cudaSuccess;
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
