// The functions that -fsanitize=thread makes the compiler call, in place of the sanitizer's library.
#include <atomic>

#include "cuda_on_host/checked/access_checks.h"
#include "cuda_on_host/device_memory.h"

using cuda_on_host::check_access;

extern "C" {

// Called when the program begins, once for each file of kernels.
void __tsan_init() {
  static const bool once = (cuda_on_host::check_accesses(), true);
  static_cast<void>(once);
}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

void __tsan_read_range(void* address, size_t bytes) { check_access(address, bytes, false, __builtin_return_address(0)); }
void __tsan_write_range(void* address, size_t bytes) { check_access(address, bytes, true, __builtin_return_address(0)); }

#define CUDA_ON_HOST_HOOKS(bytes)                                                                                        \
  void __tsan_read##bytes(void* address) { check_access(address, bytes, false, __builtin_return_address(0)); }           \
  void __tsan_write##bytes(void* address) { check_access(address, bytes, true, __builtin_return_address(0)); }           \
  void __tsan_unaligned_read##bytes(void* address) { check_access(address, bytes, false, __builtin_return_address(0)); } \
  void __tsan_unaligned_write##bytes(void* address) { check_access(address, bytes, true, __builtin_return_address(0)); } \
  void __tsan_volatile_read##bytes(void* address) { check_access(address, bytes, false, __builtin_return_address(0)); }  \
  void __tsan_volatile_write##bytes(void* address) { check_access(address, bytes, true, __builtin_return_address(0)); }
CUDA_ON_HOST_HOOKS(1)
CUDA_ON_HOST_HOOKS(2)
CUDA_ON_HOST_HOOKS(4)
CUDA_ON_HOST_HOOKS(8)
CUDA_ON_HOST_HOOKS(16)

// Atomic operations of the host code beside the kernels: as they are.
#define CUDA_ON_HOST_ATOMICS(bits, type)                                                                                     \
  type __tsan_atomic##bits##_load(const volatile type* p, int) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }              \
  void __tsan_atomic##bits##_store(volatile type* p, type v, int) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }              \
  type __tsan_atomic##bits##_exchange(volatile type* p, type v, int) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); } \
  type __tsan_atomic##bits##_fetch_add(volatile type* p, type v, int) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); } \
  type __tsan_atomic##bits##_fetch_sub(volatile type* p, type v, int) { return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST); } \
  type __tsan_atomic##bits##_fetch_or(volatile type* p, type v, int) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }   \
  type __tsan_atomic##bits##_fetch_and(volatile type* p, type v, int) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); } \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile type* p, type* e, type v, int, int) {                           \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                                  \
  }                                                                                                                          \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile type* p, type* e, type v, int, int) {                             \
    return __atomic_compare_exchange_n(p, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                                  \
  }
CUDA_ON_HOST_ATOMICS(8, unsigned char)
CUDA_ON_HOST_ATOMICS(32, unsigned)
CUDA_ON_HOST_ATOMICS(64, unsigned long)
void __tsan_atomic_thread_fence(int) { std::atomic_thread_fence(std::memory_order_seq_cst); }

}  // extern "C"
