// Barriers, exchanges between the lanes of a warp, and atomic operations. Included by language.h.
#pragma once

#include <cstring>
#include <type_traits>

#define CUDA_ON_HOST_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(CUDA_ON_HOST_PLACE) { cuda_on_host::synchronize_block(file, line); }
int __syncthreads_count(int predicate, CUDA_ON_HOST_PLACE);
inline int __syncthreads_or(int predicate, CUDA_ON_HOST_PLACE) { return __syncthreads_count(predicate != 0, file, line) != 0; }
inline int __syncthreads_and(int predicate, CUDA_ON_HOST_PLACE) { return __syncthreads_count(predicate == 0, file, line) == 0; }
inline void __syncwarp(unsigned mask = ~0u, CUDA_ON_HOST_PLACE) {
  const char nothing = 0;
  cuda_on_host::exchange(mask, &nothing, 1, file, line);
}

namespace cuda_on_host {

template <class T>
T shuffle(unsigned mask, T value, int source, const char* file, int line) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  const unsigned token = exchange(mask, &value, sizeof value, file, line);
  T result;
  std::memcpy(static_cast<void*>(&result), read_lane(token, source), sizeof result);
  return result;
}

}  // namespace cuda_on_host

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, CUDA_ON_HOST_PLACE) {
  return cuda_on_host::shuffle(mask, value, (cuda_on_host::lane() & ~(width - 1)) | (source & (width - 1)), file, line);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32, CUDA_ON_HOST_PLACE) {
  const int self = cuda_on_host::lane(), other = self ^ by;
  return cuda_on_host::shuffle(mask, value, (other & ~(width - 1)) <= (self & ~(width - 1)) ? other : self, file, line);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32, CUDA_ON_HOST_PLACE) {
  const int self = cuda_on_host::lane(), other = self + static_cast<int>(by);
  return cuda_on_host::shuffle(mask, value, other <= (self | (width - 1)) ? other : self, file, line);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32, CUDA_ON_HOST_PLACE) {
  const int self = cuda_on_host::lane(), other = self - static_cast<int>(by);
  return cuda_on_host::shuffle(mask, value, other >= (self & ~(width - 1)) ? other : self, file, line);
}
// Bits of the lanes of `mask` whose predicate holds; lanes that have ended count as false.
unsigned __ballot_sync(unsigned mask, int predicate, CUDA_ON_HOST_PLACE);
inline int __any_sync(unsigned mask, int predicate, CUDA_ON_HOST_PLACE) { return __ballot_sync(mask, predicate, file, line) != 0; }
inline int __all_sync(unsigned mask, int predicate, CUDA_ON_HOST_PLACE) { return __ballot_sync(mask, !predicate, file, line) == 0; }

inline void __threadfence() { __asm__ volatile("" ::: "memory"); }
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }
#define __trap() cuda_on_host::trap(__FILE__, __LINE__)

// Atomic because no two threads of a device run at once here. They return the value before.
#define CUDA_ON_HOST_ATOMIC __attribute__((no_sanitize("thread"), noinline))
template <class T, class U, class Operation>
CUDA_ON_HOST_ATOMIC T cuda_on_host_atomic(T* address, U value, Operation operation) {
  const T before = *address;
  *address = static_cast<T>(operation(before, static_cast<T>(value)));
  return before;
}
template <class T, class U>
T atomicAdd(T* p, U v) {
  return cuda_on_host_atomic(p, v, [](T a, T b) { return a + b; });
}
template <class T, class U>
T atomicMax(T* p, U v) {
  return cuda_on_host_atomic(p, v, [](T a, T b) { return a < b ? b : a; });
}
template <class T, class U>
T atomicMin(T* p, U v) {
  return cuda_on_host_atomic(p, v, [](T a, T b) { return b < a ? b : a; });
}
template <class T, class U>
T atomicOr(T* p, U v) {
  return cuda_on_host_atomic(p, v, [](T a, T b) { return a | b; });
}
template <class T, class U>
T atomicAnd(T* p, U v) {
  return cuda_on_host_atomic(p, v, [](T a, T b) { return a & b; });
}
template <class T, class U>
T atomicXor(T* p, U v) {
  return cuda_on_host_atomic(p, v, [](T a, T b) { return a ^ b; });
}
template <class T, class U>
T atomicExch(T* p, U v) {
  return cuda_on_host_atomic(p, v, [](T, T b) { return b; });
}
template <class T, class U>
CUDA_ON_HOST_ATOMIC T atomicCAS(T* address, U expected, U value) {
  const T before = *address;
  if (before == static_cast<T>(expected)) *address = static_cast<T>(value);
  return before;
}
