// Device memory with the categories of the host's, kept in blocks that outlive their tensors.
//
// A freed block waits in a cache, by size class, for the next request of its class; the cache is trimmed so that blocks in use and
// cached together stay below the highest use so far plus `cache_fraction` of it. Trimming waits for the device, so a class that
// is asked for again after it was trimmed is kept from then on.
//
// Reuse is ordered by the streams, not by the host. A block remembers which streams have touched it (touch(), called for every
// tensor of every kernel). Its next life starts at once on the compute stream when only the compute stream has touched it
// before; any other pair of streams is ordered by an event: the first touch of the new life by a stream waits for what the other
// streams had queued when the block was freed. The host waits only when memory is given back to the driver, which itself waits for
// the whole device: the wait is made before, under supervision and without the allocator's mutex. It throws nothing; what a
// supervisor has to say is heard at the next wait for a stream.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/supervision.h"
#include "core/memory_accounting.h"
#include "dmuon/core/tensor.h"

namespace dmuon::cuda {

// Where blocks come from; in a shape-only pass they are sizes without memory, so that its cache predicts the real one's.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  // Null when there is no memory left; DeviceError for any other failure. In a shape-only pass null always, and counts_only().
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* data) = 0;
  virtual bool counts_only() const = 0;
  // The calling thread may have used another device, or none.
  virtual void make_current() const noexcept = 0;
  // Bytes that the driver could still give, and those of the device.
  virtual std::pair<int64_t, int64_t> free_and_total() const = 0;
};
std::unique_ptr<BlockSource> make_device_source(int device);
std::unique_ptr<BlockSource> make_counting_source();

struct CudaAllocatorOptions {
  double cache_fraction = 0.10;
  // Test double: every block has exactly the bytes asked for and goes back to the driver as soon as the device is done with
  // it, so that tools that watch allocations see every tensor's bounds and its uninitialised elements.
  bool exact = false;
};

struct BlockStatistics {
  int64_t in_use = 0, peak_in_use = 0;      // bytes of blocks that hold tensors: requests rounded up to their classes
  int64_t reserved = 0, peak_reserved = 0;  // and those in the cache
};

class CudaAllocator final : public Allocator, public CountsExternalMemory {
 public:
  // `compute`: the stream whose order is free of charge; null in a shape-only pass.
  CudaAllocator(std::unique_ptr<BlockSource> source, cudaStream_t compute, const CudaAllocatorOptions& options,
                std::shared_ptr<Supervision> supervision);
  ~CudaAllocator() override;

  StorageHandle allocate(int64_t bytes, MemoryCategory category, std::string_view name) override;
  MemoryStatistics statistics() const override;
  void reset_peak() override;
  std::shared_ptr<const void> count_external(int64_t bytes, MemoryCategory category) override;

  // The stream is about to read or write the tensor. Tensors of other allocators are ignored.
  void touch(cudaStream_t stream, const Tensor& tensor);
  // A stream exists from here on, and no longer: it has finished all its work.
  void stream_opened(cudaStream_t stream);
  void stream_closed(cudaStream_t stream);

  // While work is captured into a graph no event from outside may be waited for: blocks handed out have then nothing before
  // them (the host waits for it), and none goes back to the driver.
  void set_capturing(bool capturing);

  BlockStatistics blocks() const;
  std::pair<int64_t, int64_t> free_and_total() const;  // as the driver says

 private:
  struct State;
  class BlockStorage;
  std::shared_ptr<State> state_;
};

}  // namespace dmuon::cuda
