// Marks that know when the device passed them.
#include "backend/cuda/cuda_mark.h"
#include "dmuon/core/error.h"

namespace dmuon::cuda {
namespace {

const TimedMark& timed(const Event& event) {
  const auto* mark = dynamic_cast<const TimedMark*>(event.state().get());
  if (mark == nullptr) throw DeviceError("a time was asked of an event that is none of record_time()");
  return *mark;
}

}  // namespace

Event CudaStream::record_time() {
  auto mark = std::make_shared<TimedMark>(shared_);
  check(cudaEventRecord(mark->event, handle_), "a timed event");
  return Event(std::move(mark));
}

double CudaStream::seconds_between(const Event& first, const Event& second) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, timed(first).event, timed(second).event), "the time between two events");
  return 1e-3 * static_cast<double>(milliseconds);
}

}  // namespace dmuon::cuda
