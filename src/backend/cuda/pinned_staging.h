// Copies between ordinary host memory and the device through page-locked buffers, piece by piece: the device can only copy
// from and to such memory on its own, while the host goes on.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <mutex>
#include <vector>

namespace dmuon::cuda {

class PinnedStaging {
 public:
  PinnedStaging() = default;
  ~PinnedStaging();  // waits for what is under way
  PinnedStaging(const PinnedStaging&) = delete;
  PinnedStaging& operator=(const PinnedStaging&) = delete;

  // The source may change at once. Waits only when all buffers are under way.
  void upload(cudaStream_t stream, const void* source, void* destination, int64_t bytes);
  // Returns when everything has arrived.
  void download(cudaStream_t stream, const void* source, void* destination, int64_t bytes);

 private:
  struct Buffer {
    void* data = nullptr;
    cudaEvent_t used = nullptr;  // recorded behind its last copy
    bool holds_result = false;   // of a download that has not been taken out
  };
  // Buffers of one size, taken in turn; more are made, up to `limit`, while the next one is under way.
  struct Ring {
    int64_t bytes;
    size_t limit;
    std::vector<Buffer> buffers = {};
    size_t next = 0;
  };
  Ring& ring_for(int64_t bytes) { return bytes <= small_.bytes ? small_ : large_; }
  size_t acquire(Ring& ring);  // a buffer that nothing uses any more

  std::mutex mutex_;
  Ring small_{int64_t{64} << 10, 32};
  Ring large_{int64_t{4} << 20, 8};
};

}  // namespace dmuon::cuda
