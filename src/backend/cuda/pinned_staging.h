// Copies between ordinary host memory and the device through page-locked buffers, piece by piece: the device can only copy
// from and to such memory on its own, while the host goes on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "backend/cuda/supervision.h"

namespace dmuon::cuda {

// Thread-safe: a thread that waits for the device holds buffers, and nothing that others wait for.
class PinnedStaging {
 public:
  explicit PinnedStaging(std::shared_ptr<Supervision> supervision) : supervision_(std::move(supervision)) {}
  ~PinnedStaging();  // waits for what is under way
  PinnedStaging(const PinnedStaging&) = delete;
  PinnedStaging& operator=(const PinnedStaging&) = delete;

  // The source may change at once. Waits only when all buffers are under way. Both throw what a supervisor throws.
  void upload(cudaStream_t stream, const void* source, void* destination, int64_t bytes);
  // Returns when everything has arrived.
  void download(cudaStream_t stream, const void* source, void* destination, int64_t bytes);

 private:
  struct Buffer {
    void* data = nullptr;
    cudaEvent_t used = nullptr;  // recorded behind its last copy
    bool held = false;           // by a thread that fills it, or waits for what comes into it
  };
  // Buffers of one size, taken in turn; more are made, up to `limit`, while the next one is under way, and beyond it while
  // threads hold all there are.
  struct Ring {
    int64_t bytes;
    size_t limit;
    std::deque<Buffer> buffers = {};
    size_t next = 0;
  };
  class Held;  // a buffer for as long as this thread holds it

  Ring& ring_for(int64_t bytes) { return bytes <= small_.bytes ? small_ : large_; }
  Buffer& make(Ring& ring);
  Buffer& acquire(Ring& ring);  // a buffer that nothing uses any more, held
  void let_go(Buffer& buffer);

  const std::shared_ptr<Supervision> supervision_;
  std::mutex mutex_;  // of the rings; not held while waiting
  Ring small_{int64_t{64} << 10, 32};
  Ring large_{int64_t{4} << 20, 8};
};

}  // namespace dmuon::cuda
