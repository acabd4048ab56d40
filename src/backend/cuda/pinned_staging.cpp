#include "backend/cuda/pinned_staging.h"

#include <algorithm>
#include <cstring>

#include "backend/cuda/cuda_error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {

class PinnedStaging::Held {
 public:
  Held(PinnedStaging& staging, Ring& ring) : staging_(staging), buffer_(staging.acquire(ring)) {}
  ~Held() { staging_.let_go(buffer_); }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  Buffer* operator->() const { return &buffer_; }

 private:
  PinnedStaging& staging_;
  Buffer& buffer_;
};

PinnedStaging::~PinnedStaging() {
  for (const Ring* ring : {&small_, &large_})
    for (const Buffer& buffer : ring->buffers) {
      supervision_->drain(buffer.used);
      cudaEventDestroy(buffer.used);
      cudaFreeHost(buffer.data);
    }
}

// With mutex_.
PinnedStaging::Buffer& PinnedStaging::make(Ring& ring) {
  Buffer buffer;
  check(cudaHostAlloc(&buffer.data, static_cast<size_t>(ring.bytes), cudaHostAllocDefault),
        text("a page-locked buffer of ", ring.bytes, " bytes"));
  const cudaError_t status = cudaEventCreateWithFlags(&buffer.used, cudaEventDisableTiming);
  if (status != cudaSuccess) cudaFreeHost(buffer.data);
  check(status, "an event of a page-locked buffer");
  return ring.buffers.emplace_back(buffer);
}

PinnedStaging::Buffer& PinnedStaging::acquire(Ring& ring) {
  Buffer* buffer = nullptr;
  {
    const std::lock_guard lock(mutex_);
    const size_t count = ring.buffers.size();
    size_t skipped = 0;
    while (skipped < count && ring.buffers[(ring.next + skipped) % count].held) ++skipped;
    const bool all_held = skipped == count;
    const size_t index = all_held ? 0 : (ring.next + skipped) % count;
    if (all_held || (count < ring.limit && cudaEventQuery(ring.buffers[index].used) == cudaErrorNotReady)) {
      buffer = &make(ring);  // the turn of the others does not change
    } else {
      buffer = &ring.buffers[index];
      ring.next = (index + 1) % count;
    }
    buffer->held = true;
  }
  try {
    check(supervision_->wait(buffer->used), "waiting for a copy");
  } catch (...) {
    let_go(*buffer);
    throw;
  }
  return *buffer;
}

void PinnedStaging::let_go(Buffer& buffer) {
  const std::lock_guard lock(mutex_);
  buffer.held = false;
}

void PinnedStaging::upload(cudaStream_t stream, const void* source, void* destination, int64_t bytes) {
  Ring& ring = ring_for(bytes);
  for (int64_t done = 0; done < bytes; done += ring.bytes) {
    const auto piece = static_cast<size_t>(std::min(ring.bytes, bytes - done));
    const Held buffer(*this, ring);
    std::memcpy(buffer->data, static_cast<const char*>(source) + done, piece);
    check(cudaMemcpyAsync(static_cast<char*>(destination) + done, buffer->data, piece, cudaMemcpyHostToDevice, stream),
          text("a copy of ", bytes, " bytes to the device"));
    check(cudaEventRecord(buffer->used, stream), "the end of a copy");
  }
}

void PinnedStaging::download(cudaStream_t stream, const void* source, void* destination, int64_t bytes) {
  Ring& ring = ring_for(bytes);
  struct Piece {
    Piece(PinnedStaging& staging, Ring& ring, int64_t f, size_t b) : buffer(staging, ring), first(f), bytes(b) {}
    const Held buffer;
    const int64_t first;
    const size_t bytes;
  };
  std::deque<Piece> under_way;  // at most two: one on its way, one being taken out
  const auto take_out_oldest = [&] {
    const Piece& piece = under_way.front();
    check(supervision_->wait(piece.buffer->used), text("a copy of ", bytes, " bytes to the host"));
    std::memcpy(static_cast<char*>(destination) + piece.first, piece.buffer->data, piece.bytes);
    under_way.pop_front();
  };
  for (int64_t done = 0; done < bytes; done += ring.bytes) {
    if (under_way.size() == 2) take_out_oldest();
    const auto length = static_cast<size_t>(std::min(ring.bytes, bytes - done));
    const Piece& piece = under_way.emplace_back(*this, ring, done, length);
    check(cudaMemcpyAsync(piece.buffer->data, static_cast<const char*>(source) + done, length, cudaMemcpyDeviceToHost, stream),
          text("a copy of ", bytes, " bytes to the host"));
    check(cudaEventRecord(piece.buffer->used, stream), "the end of a copy");
  }
  while (!under_way.empty()) take_out_oldest();
}

}  // namespace dmuon::cuda
