// Streams and events of the device behind the seam.
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

#include "dmuon/backend/stream.h"

namespace dmuon::cuda {

class CudaStream final : public Stream {
 public:
  // `high_priority`: before the compute stream wherever both have work.
  CudaStream(std::string name, bool high_priority);
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
};

// The stream's handle; `stream` is one of a CudaBackend.
cudaStream_t handle_of(Stream& stream);

}  // namespace dmuon::cuda
