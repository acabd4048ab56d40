#include "backend/cuda/pinned_staging.h"

#include <algorithm>
#include <cstring>
#include <deque>

#include "backend/cuda/cuda_error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {

PinnedStaging::~PinnedStaging() {
  for (const Ring* ring : {&small_, &large_})
    for (const Buffer& buffer : ring->buffers) {
      cudaEventSynchronize(buffer.used);
      cudaEventDestroy(buffer.used);
      cudaFreeHost(buffer.data);
    }
}

size_t PinnedStaging::acquire(Ring& ring) {
  const size_t count = ring.buffers.size();
  const auto taken = [](const Buffer& buffer) { return buffer.holds_result || cudaEventQuery(buffer.used) == cudaErrorNotReady; };
  if (count < ring.limit && (count == 0 || taken(ring.buffers[ring.next]))) {
    Buffer buffer;
    check(cudaHostAlloc(&buffer.data, static_cast<size_t>(ring.bytes), cudaHostAllocDefault),
          text("a page-locked buffer of ", ring.bytes, " bytes"));
    const cudaError_t status = cudaEventCreateWithFlags(&buffer.used, cudaEventDisableTiming);
    if (status != cudaSuccess) cudaFreeHost(buffer.data);
    check(status, "an event of a page-locked buffer");
    ring.buffers.push_back(buffer);
    return count;  // the turn of the others does not change
  }
  const size_t index = ring.next;
  ring.next = (ring.next + 1) % count;
  check(cudaEventSynchronize(ring.buffers[index].used), "waiting for a copy");
  return index;
}

void PinnedStaging::upload(cudaStream_t stream, const void* source, void* destination, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Ring& ring = ring_for(bytes);
  for (int64_t done = 0; done < bytes; done += ring.bytes) {
    const auto piece = static_cast<size_t>(std::min(ring.bytes, bytes - done));
    const Buffer& buffer = ring.buffers[acquire(ring)];
    std::memcpy(buffer.data, static_cast<const char*>(source) + done, piece);
    check(cudaMemcpyAsync(static_cast<char*>(destination) + done, buffer.data, piece, cudaMemcpyHostToDevice, stream),
          text("a copy of ", bytes, " bytes to the device"));
    check(cudaEventRecord(buffer.used, stream), "the end of a copy");
  }
}

void PinnedStaging::download(cudaStream_t stream, const void* source, void* destination, int64_t bytes) {
  const std::lock_guard lock(mutex_);
  Ring& ring = ring_for(bytes);
  struct Piece {
    size_t buffer;
    int64_t first;
    size_t bytes;
  };
  std::deque<Piece> under_way;  // at most two: one on its way, one being taken out
  const auto take_out_oldest = [&] {
    const Piece piece = under_way.front();
    Buffer& buffer = ring.buffers[piece.buffer];
    check(cudaEventSynchronize(buffer.used), text("a copy of ", bytes, " bytes to the host"));
    std::memcpy(static_cast<char*>(destination) + piece.first, buffer.data, piece.bytes);
    buffer.holds_result = false;
    under_way.pop_front();
  };
  for (int64_t done = 0; done < bytes; done += ring.bytes) {
    if (under_way.size() == 2) take_out_oldest();
    const auto piece = static_cast<size_t>(std::min(ring.bytes, bytes - done));
    const size_t index = acquire(ring);
    Buffer& buffer = ring.buffers[index];
    check(cudaMemcpyAsync(buffer.data, static_cast<const char*>(source) + done, piece, cudaMemcpyDeviceToHost, stream),
          text("a copy of ", bytes, " bytes to the host"));
    check(cudaEventRecord(buffer.used, stream), "the end of a copy");
    buffer.holds_result = true;
    under_way.push_back({index, done, piece});
  }
  while (!under_way.empty()) take_out_oldest();
}

}  // namespace dmuon::cuda
