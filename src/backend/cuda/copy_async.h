// Copies from global to shared memory that run beside the thread's own work (PTX: cp.async; sm_80 and later). A thread adds
// copies, closes a group of them with commit(), and before it reads waits until all but the newest groups have landed; other
// threads may read what landed after a __syncthreads().
//
// On the host a copy may land at any moment that is legal: groups land in turn as soon as they are committed and as late as
// their wait, so that both a missing wait and a buffer that is overwritten too early give wrong numbers.
#pragma once

#include "backend/cuda/device_language.h"

#ifndef __CUDACC__
#include <deque>
#include <vector>
#endif

namespace dmuon::cuda {

class AsyncCopies {
 public:
  // 16 bytes, of which the first `bytes` (0 to 16) come from `global` and the rest are zero. Both are 16-byte aligned; of no
  // bytes nothing is read.
  __device__ void add(void* shared, const void* global, int bytes = 16);
  __device__ void commit();
  // All groups but the `pending` newest have landed.
  template <int pending>
  __device__ void wait();

#ifndef __CUDACC__
 private:
  struct Copy {
    void* shared;
    const void* global;
    int bytes;
    void land() const {
      unsigned char landed[16] = {};
      if (bytes > 0) std::memcpy(landed, global, static_cast<size_t>(bytes));
      std::memcpy(shared, landed, sizeof landed);
    }
  };
  using Group = std::vector<Copy>;
  Group open_;
  std::deque<Group> groups_;
  unsigned committed_ = 0;
#endif
};

#ifdef __CUDACC__

__device__ __forceinline__ void AsyncCopies::add(void* shared, const void* global, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(shared))), "l"(global),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void AsyncCopies::commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending>
__device__ __forceinline__ void AsyncCopies::wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

#else

inline void AsyncCopies::add(void* shared, const void* global, int bytes) { open_.push_back({shared, global, bytes}); }
inline void AsyncCopies::commit() {
  if (committed_++ % 2 == 0) {
    for (const Copy& copy : open_) copy.land();
    open_.clear();
  }
  groups_.push_back(std::move(open_));
  open_.clear();
}
template <int pending>
void AsyncCopies::wait() {
  for (; groups_.size() > pending; groups_.pop_front())
    for (const Copy& copy : groups_.front()) copy.land();
}

#endif

}  // namespace dmuon::cuda
