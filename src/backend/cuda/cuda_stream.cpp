#include "backend/cuda/cuda_stream.h"

#include <utility>

#include "backend/cuda/cuda_error.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {
namespace {

struct CudaMark final : Event::State {
  explicit CudaMark(std::shared_ptr<CudaStream::Failure> f) : failure(std::move(f)) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event cannot be made");
  }
  ~CudaMark() override { cudaEventDestroy(event); }
  bool done() const override { return cudaEventQuery(event) != cudaErrorNotReady; }
  void wait() override {
    check(cudaEventSynchronize(event), "waiting for the device");
    failure->rethrow();
  }

  std::shared_ptr<CudaStream::Failure> failure;
  cudaEvent_t event = nullptr;
};

struct HostWork {
  std::shared_ptr<CudaStream::Failure> failure;
  std::function<void()> work;
};

void run_host_work(void* data) {
  const std::unique_ptr<HostWork> item(static_cast<HostWork*>(data));
  {
    const std::lock_guard lock(item->failure->mutex);
    if (item->failure->error) return;
  }
  try {
    item->work();
  } catch (...) {
    const std::lock_guard lock(item->failure->mutex);
    item->failure->error = std::current_exception();
  }
}

}  // namespace

void CudaStream::Failure::rethrow() {
  const std::lock_guard lock(mutex);
  if (error) std::rethrow_exception(error);
}

CudaStream::CudaStream(std::string name, bool high_priority) : name_(std::move(name)) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of streams");
  check(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, high_priority ? greatest : least), text("stream ", name_));
}

CudaStream::~CudaStream() {
  cudaStreamSynchronize(handle_);
  cudaStreamDestroy(handle_);
}

void CudaStream::submit(std::function<void()> work) {
  auto item = std::make_unique<HostWork>(HostWork{failure_, std::move(work)});
  check(cudaLaunchHostFunc(handle_, run_host_work, item.get()), text("host work on stream ", name_));
  item.release();
}

Event CudaStream::record() {
  auto mark = std::make_shared<CudaMark>(failure_);
  check(cudaEventRecord(mark->event, handle_), text("an event of stream ", name_));
  return Event(std::move(mark));
}

void CudaStream::wait(const Event& event) {
  if (!event.state()) return;
  if (const auto* mark = dynamic_cast<const CudaMark*>(event.state().get()))
    check(cudaStreamWaitEvent(handle_, mark->event, 0), text("stream ", name_, " waiting for an event"));
  else
    event.wait();  // a mark of the host
}

void CudaStream::synchronize() {
  check(cudaStreamSynchronize(handle_), text("stream ", name_));
  failure_->rethrow();
}

cudaStream_t handle_of(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  if (cuda == nullptr) throw DeviceError("a kernel of the CUDA backend was given a stream of another backend");
  return cuda->handle();
}

}  // namespace dmuon::cuda
