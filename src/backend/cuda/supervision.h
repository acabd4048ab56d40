// How threads wait for the device: looking after what could keep it waiting for ever (Supervisor), so that a peer that died
// becomes an error and no hang. Every wait of the backend goes through here. No wait may be made while holding a mutex that a
// supervisor, or a tensor that one lets go, could need.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <vector>

namespace dmuon::cuda {

// Looks after work on the device that needs other processes.
class Supervisor {
 public:
  virtual ~Supervisor() = default;
  // Called again and again by threads that wait for any stream of the device, and once when the wait is over. Throws, from
  // then on always, when the work failed or is waited for in vain, having ended the work first. Thread-safe; must not wait for
  // the device itself.
  virtual void poll() = 0;
};

// The supervisors of one device. Thread-safe.
class Supervision {
 public:
  void add(std::weak_ptr<Supervisor> supervisor);
  bool empty() const;
  void poll();

  // Until the event has happened, or the stream's work so far has finished: its status. Throws what a supervisor throws.
  cudaError_t wait(cudaEvent_t event);
  cudaError_t wait(cudaStream_t stream);
  // The same where nothing may be thrown. What a supervisor throws is dropped: it has ended the work that was in the way, and
  // the next wait() throws it again.
  cudaError_t drain(cudaEvent_t event) noexcept;
  cudaError_t drain(cudaStream_t stream) noexcept;

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Supervisor>> supervisors_;
};

}  // namespace dmuon::cuda
