#include "backend/cuda/cuda_stream.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "backend/cuda/cuda_error.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {
namespace {

// Until the event has happened. Polling spins at first, so that short waits cost what they cost without it.
void wait_supervised(cudaEvent_t event, Supervision& supervision) {
  for (int64_t round = 0;; ++round) {
    const cudaError_t status = cudaEventQuery(event);
    if (status != cudaErrorNotReady) return check(status, "waiting for the device");
    if (round % 64 == 63) supervision.poll();
    if (round > 4096)
      std::this_thread::sleep_for(std::chrono::microseconds(std::min<int64_t>(200, (round - 4096) / 16)));
    else if (round > 256)
      std::this_thread::yield();
  }
}

struct CudaMark final : Event::State {
  CudaMark(std::shared_ptr<CudaStream::Failure> f, std::shared_ptr<Supervision> s) : failure(std::move(f)), supervision(std::move(s)) {
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "an event cannot be made");
  }
  ~CudaMark() override { cudaEventDestroy(event); }
  bool done() const override { return cudaEventQuery(event) != cudaErrorNotReady; }
  void wait() override {
    if (!supervision || supervision->empty()) {
      check(cudaEventSynchronize(event), "waiting for the device");
    } else {
      wait_supervised(event, *supervision);
      supervision->poll();
    }
    failure->rethrow();
  }

  std::shared_ptr<CudaStream::Failure> failure;
  std::shared_ptr<Supervision> supervision;
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

CudaStream::CudaStream(std::string name, bool high_priority, std::shared_ptr<Supervision> supervision)
    : name_(std::move(name)), supervision_(std::move(supervision)) {
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
  auto mark = std::make_shared<CudaMark>(failure_, supervision_);
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
  if (supervision_ && !supervision_->empty()) return record().wait();
  check(cudaStreamSynchronize(handle_), text("stream ", name_));
  failure_->rethrow();
}

cudaStream_t handle_of(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  if (cuda == nullptr) throw DeviceError("a kernel of the CUDA backend was given a stream of another backend");
  return cuda->handle();
}

}  // namespace dmuon::cuda
