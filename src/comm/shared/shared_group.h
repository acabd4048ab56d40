// The memory through which the ranks of a group that share a host meet: for every one of a few running collectives a
// line per rank that says how far it is, and staging buffers.
//
// Collective number s uses slot s % slots. A rank enters it once all ranks have left collective s - slots, so that lines
// and buffers of a slot are never overwritten while somebody reads them.
#pragma once

#include <atomic>
#include <memory>

#include "comm/operation.h"
#include "comm/shared/shared_segment.h"

namespace dmuon {

class SharedGroup {
 public:
  static constexpr int slots = 8;
  static constexpr int64_t chunk_bytes = int64_t{128} << 10;  // of staging; two of them stay in the second-level cache

  // Written by its rank, read by all. `greeting` and `place` are valid once `progress` says that the rank entered.
  struct alignas(128) Line {
    std::atomic<uint64_t> progress;  // sequence << 32 | step
    std::atomic<int64_t> left;       // the last collective of this slot that the rank has left
    Greeting greeting;
    uint64_t segment;  // id of the shared segment in which the rank's data lies; 0: private memory
    int64_t place;     // of the data in that segment
  };

  static int64_t bytes_per_rank(int ranks);
  // `segment` is zeroed and has bytes_per_rank(ranks) for every rank.
  // `account` is kept as long as this.
  SharedGroup(std::shared_ptr<SharedSegment> segment, int ranks, std::shared_ptr<const void> account = nullptr);

  int ranks() const { return ranks_; }
  Line& line(int64_t sequence, int rank) const;
  // Staging of a rank, two buffers each: `input` holds chunk_bytes and 64 bytes more for every rank, `output` as much.
  char* input(int64_t sequence, int rank, int64_t buffer) const;
  char* output(int64_t sequence, int rank, int64_t buffer) const;

 private:
  static int64_t buffer_bytes(int ranks);
  char* slot(int64_t sequence, int rank) const;

  std::shared_ptr<SharedSegment> segment_;
  std::shared_ptr<const void> account_;
  int ranks_;
};

}  // namespace dmuon
