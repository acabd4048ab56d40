// The event of a place in a stream.
#pragma once

#include <memory>
#include <utility>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_stream.h"

namespace dmuon::cuda {

struct CudaMark : Event::State {
  // `flags` of cudaEventCreateWithFlags: with or without times.
  explicit CudaMark(std::shared_ptr<CudaStream::Shared> s, unsigned flags = cudaEventDisableTiming) : shared(std::move(s)) {
    check(cudaEventCreateWithFlags(&event, flags), "an event cannot be made");
  }
  ~CudaMark() override { cudaEventDestroy(event); }
  bool done() const override { return cudaEventQuery(event) != cudaErrorNotReady; }
  void wait() override {
    shared->wait(event);
    shared->rethrow();
  }

  std::shared_ptr<CudaStream::Shared> shared;
  cudaEvent_t event = nullptr;
};

// One that knows when the device passed it.
struct TimedMark final : CudaMark {
  explicit TimedMark(std::shared_ptr<CudaStream::Shared> s) : CudaMark(std::move(s), cudaEventDefault) {}
};

}  // namespace dmuon::cuda
