#include "backend/cuda/supervision.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace dmuon::cuda {
namespace {

// Polling spins at first, so that short waits cost what they cost without it.
template <class Query>
cudaError_t poll_until_done(Supervision& supervision, const Query& query) {
  for (int64_t round = 0;; ++round) {
    const cudaError_t status = query();
    if (status != cudaErrorNotReady) {
      supervision.poll();
      return status;
    }
    if (round % 64 == 63) supervision.poll();
    if (round > 4096)
      std::this_thread::sleep_for(std::chrono::microseconds(std::min<int64_t>(200, (round - 4096) / 16)));
    else if (round > 256)
      std::this_thread::yield();
  }
}

}  // namespace

void Supervision::add(std::weak_ptr<Supervisor> supervisor) {
  const std::lock_guard lock(mutex_);
  supervisors_.push_back(std::move(supervisor));
}

bool Supervision::empty() const {
  const std::lock_guard lock(mutex_);
  return supervisors_.empty();
}

void Supervision::poll() {
  std::vector<std::shared_ptr<Supervisor>> living;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(supervisors_, [](const std::weak_ptr<Supervisor>& each) { return each.expired(); });
    for (const std::weak_ptr<Supervisor>& each : supervisors_) living.push_back(each.lock());
  }
  for (const std::shared_ptr<Supervisor>& each : living)
    if (each) each->poll();
}

cudaError_t Supervision::wait(cudaEvent_t event) {
  if (empty()) return cudaEventSynchronize(event);
  return poll_until_done(*this, [&] { return cudaEventQuery(event); });
}

cudaError_t Supervision::wait(cudaStream_t stream) {
  if (empty()) return cudaStreamSynchronize(stream);
  return poll_until_done(*this, [&] { return cudaStreamQuery(stream); });
}

cudaError_t Supervision::drain(cudaEvent_t event) noexcept {
  try {
    return wait(event);
  } catch (...) {
    return cudaEventSynchronize(event);
  }
}

cudaError_t Supervision::drain(cudaStream_t stream) noexcept {
  try {
    return wait(stream);
  } catch (...) {
    return cudaStreamSynchronize(stream);
  }
}

}  // namespace dmuon::cuda
