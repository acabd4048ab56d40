#include "backend/cuda/cuda_stream.h"

#include <algorithm>
#include <utility>

#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_mark.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {
namespace {

struct HostWork {
  std::shared_ptr<CudaStream::Shared> shared;
  std::function<void()> work;
};

// On a thread of the driver, which must not call CUDA: not even by letting go of tensors.
void run_host_work(void* data) {
  const std::unique_ptr<HostWork> item(static_cast<HostWork*>(data));
  CudaStream::Shared& shared = *item->shared;
  std::exception_ptr thrown;
  {
    const std::lock_guard lock(shared.mutex);
    thrown = shared.error;
  }
  if (!thrown) {
    try {
      item->work();
    } catch (...) {
      thrown = std::current_exception();
    }
  }
  const std::lock_guard lock(shared.mutex);
  shared.error = thrown;
  shared.finished.push_back(std::move(item->work));
}

}  // namespace

void RecentWork::add(const char* name, const std::vector<Tensor>& tensors) {
  const std::lock_guard lock(mutex_);
  Entry& entry = entries_[added_++ % entries_.size()];
  entry.name = name;
  const auto first = std::find_if(tensors.begin(), tensors.end(), [](const Tensor& tensor) { return tensor.defined(); });
  entry.shape = first == tensors.end() ? Shape() : first->shape();
  entry.dtype = first == tensors.end() ? DType::float32 : first->dtype();
}

std::string RecentWork::describe() const {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> names;
  for (size_t back = 1; back <= std::min(added_, entries_.size()); ++back) {
    const Entry& entry = entries_[(added_ - back) % entries_.size()];
    names.push_back(text(entry.name, " (", name_of(entry.dtype), entry.shape.to_string(), ")"));
  }
  return join(names, ", ");
}

void CudaStream::Shared::rethrow() {
  const std::lock_guard lock(mutex);
  if (error) std::rethrow_exception(error);
}

void CudaStream::Shared::check(cudaError_t status, const std::string& what) const {
  if (status == cudaSuccess) return;
  const std::string kernels = surroundings.recent->describe();
  cuda::check(status, kernels.empty() ? what
                                      : text(what, "; queued last, the latest first: ", kernels,
                                             "; with CUDA_LAUNCH_BLOCKING=1 the kernel that failed reports it itself"));
}

void CudaStream::Shared::wait(cudaEvent_t event) { check(surroundings.supervision->wait(event), "waiting for the device"); }

CudaStream::CudaStream(std::string name, bool high_priority, StreamSurroundings surroundings, std::function<void(cudaStream_t)> closed)
    : name_(std::move(name)), closed_(std::move(closed)) {
  shared_->surroundings = std::move(surroundings);
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities of streams");
  check(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, high_priority ? greatest : least), text("stream ", name_));
}

CudaStream::~CudaStream() {
  shared_->surroundings.supervision->drain(handle_);
  let_go_of_finished();
  if (closed_) closed_(handle_);
  cudaStreamDestroy(handle_);
}

void CudaStream::let_go_of_finished() {
  std::vector<std::function<void()>> finished;  // destroyed after the lock
  const std::lock_guard lock(shared_->mutex);
  finished.swap(shared_->finished);
}

void CudaStream::submit(std::function<void()> work) {
  let_go_of_finished();
  auto item = std::make_unique<HostWork>(HostWork{shared_, std::move(work)});
  check(cudaLaunchHostFunc(handle_, run_host_work, item.get()), text("host work on stream ", name_));
  item.release();
}

Event CudaStream::record() {
  auto mark = std::make_shared<CudaMark>(shared_);
  shared_->check(cudaEventRecord(mark->event, handle_), text("an event of stream ", name_));
  return Event(std::move(mark));
}

void CudaStream::wait(const Event& event) {
  if (!event.state()) return;
  if (const auto* mark = dynamic_cast<const CudaMark*>(event.state().get()))
    shared_->check(cudaStreamWaitEvent(handle_, mark->event, 0), text("stream ", name_, " waiting for an event"));
  else
    event.wait();  // a mark of the host
}

void CudaStream::synchronize() {
  shared_->check(shared_->surroundings.supervision->wait(handle_), text("stream ", name_));
  let_go_of_finished();
  shared_->rethrow();
}

cudaStream_t handle_of(Stream& stream) {
  auto* cuda = dynamic_cast<CudaStream*>(&stream);
  if (cuda == nullptr) throw DeviceError("a kernel of the CUDA backend was given a stream of another backend");
  return cuda->handle();
}

}  // namespace dmuon::cuda
