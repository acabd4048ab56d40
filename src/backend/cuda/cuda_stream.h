// Streams and events of the device behind the seam.
//
// Waits are supervised (supervision.h).
//
// submit() runs host work between the device work before and after it (cudaLaunchHostFunc); it must not call CUDA. Work that
// throws ends the stream for host work: later host work is dropped and every wait on a later event rethrows. Kernels that
// were queued already still run, as on every device.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/cuda/supervision.h"
#include "dmuon/backend/device_clock.h"
#include "dmuon/backend/stream.h"
#include "dmuon/core/tensor.h"

namespace dmuon::cuda {

// The kernels queued last. A kernel that fails on the device is noticed at a later wait, and then the device no longer says
// which one it was.
class RecentWork {
 public:
  void add(const char* name, const std::vector<Tensor>& tensors);
  std::string describe() const;  // the latest first

 private:
  struct Entry {
    const char* name = nullptr;
    Shape shape;
    DType dtype = DType::float32;
  };
  mutable std::mutex mutex_;
  std::array<Entry, 8> entries_;
  size_t added_ = 0;
};

// What all streams of a device share.
struct StreamSurroundings {
  std::shared_ptr<RecentWork> recent = std::make_shared<RecentWork>();
  std::shared_ptr<Supervision> supervision = std::make_shared<Supervision>();
};

class CudaStream final : public Stream, public DeviceClock {
 public:
  // `high_priority`: before the compute stream wherever both have work. `closed` is told when the stream has finished its work
  // and ends.
  CudaStream(std::string name, bool high_priority, StreamSurroundings surroundings, std::function<void(cudaStream_t)> closed);
  ~CudaStream() override;
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;

  bool runs_inline() const override { return false; }
  void submit(std::function<void()> work) override;
  Event record() override;
  void wait(const Event& event) override;
  void synchronize() override;
  Event record_time() override;
  double seconds_between(const Event& first, const Event& second) const override;

  cudaStream_t handle() const { return handle_; }
  // What this stream shares with its marks and its host work, which may outlive it.
  struct Shared {
    std::mutex mutex;
    std::exception_ptr error;                     // the first one of host work
    std::vector<std::function<void()>> finished;  // host work whose tensors a thread that may call CUDA has to let go
    StreamSurroundings surroundings;
    void rethrow();
    // DeviceError that names the latest kernels unless `status` is success.
    void check(cudaError_t status, const std::string& what) const;
    // Until the event has happened, looking after the supervisors.
    void wait(cudaEvent_t event);
  };

 private:
  void let_go_of_finished();

  std::string name_;
  cudaStream_t handle_ = nullptr;
  std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
  std::function<void(cudaStream_t)> closed_;
};

// The stream's handle; `stream` is one of a CudaBackend.
cudaStream_t handle_of(Stream& stream);

}  // namespace dmuon::cuda
