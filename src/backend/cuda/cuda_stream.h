// Streams and events of the device behind the seam.
//
// Threads that wait for the device look after what could keep it waiting for ever (Supervisor), so that a peer that died
// becomes an error and no hang.
//
// submit() runs host work between the device work before and after it (cudaLaunchHostFunc); it must not call CUDA. Work that
// throws ends the stream for host work: later host work is dropped and every wait on a later event rethrows. Kernels that
// were queued already still run, as on every device.
#pragma once

#include <cuda_runtime_api.h>

#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dmuon/backend/stream.h"

namespace dmuon::cuda {

// Looks after work on the device that needs other processes.
class Supervisor {
 public:
  virtual ~Supervisor() = default;
  // Called again and again by threads that wait for any stream of the device, and once when the wait is over. Throws, from
  // then on always, when the work failed or is waited for in vain. Thread-safe; must not wait for the device itself.
  virtual void poll() = 0;
};

// The supervisors of one device. Thread-safe.
class Supervision {
 public:
  void add(std::weak_ptr<Supervisor> supervisor);
  bool empty() const;
  void poll();

 private:
  mutable std::mutex mutex_;
  std::vector<std::weak_ptr<Supervisor>> supervisors_;
};

class CudaStream final : public Stream {
 public:
  // `high_priority`: before the compute stream wherever both have work.
  CudaStream(std::string name, bool high_priority, std::shared_ptr<Supervision> supervision = nullptr);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  bool runs_inline() const override { return false; }
  void submit(std::function<void()> work) override;
  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;

  cudaStream_t handle() const { return handle_; }
  // The first error of host work that this stream ran.
  struct Failure {
    std::mutex mutex;
    std::exception_ptr error;
    void rethrow();
  };

 private:
  std::string name_;
  cudaStream_t handle_ = nullptr;
  std::shared_ptr<Failure> failure_ = std::make_shared<Failure>();
  std::shared_ptr<Supervision> supervision_;  // or null
};

// The stream's handle; `stream` is one of a CudaBackend.
cudaStream_t handle_of(Stream& stream);

}  // namespace dmuon::cuda
