// Streams, events and kernel launches of the runtime.
#include <algorithm>
#include <cstring>

#include "cuda_on_host/device_memory.h"
#include "cuda_on_host/device_queue.h"
#include "cuda_on_host/devices.h"
#include "cuda_on_host/errors.h"
#include "cuda_on_host/fibers.h"
#include "cuda_on_host/language.h"
#include "cuda_on_host/shared_memory.h"
#include "cuda_on_host/stream_queue.h"
#include "dmuon/core/text.h"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

using dmuon::text;

struct CUstream_st {
  std::shared_ptr<cuda_on_host::StreamState> state;
};
struct CUevent_st {
  cuda_on_host::EventState state;
};

namespace cuda_on_host {
namespace {

Order planned_order(DeviceQueue& queue) {
  const char* text = std::getenv("CUDA_ON_HOST_ORDER");
  if (text != nullptr && !std::strcmp(text, "forward")) return Order::forward;
  if (text != nullptr && !std::strcmp(text, "reverse")) return Order::reverse;
  if (text != nullptr && !std::strcmp(text, "random")) return Order::random;
  return static_cast<Order>(queue.random(3));
}

void run_queued_kernel(const Kernel& kernel) {
  if (fails_now("kernel") || fails_now("kernel=" + kernel.name))
    return fail_device(cudaErrorLaunchFailure, "kernel " + kernel.name + ": a planned failure");
  if (fails_now("device")) return fail_device(cudaErrorDevicesUnavailable, "the device was lost: a planned failure");
  DeviceQueue& queue = DeviceQueue::only();
  Order order{};
  uint64_t seed = 0;
  {
    const auto lock = queue.lock();
    order = planned_order(queue);
    seed = queue.random(1u << 30) + 1;
  }
  const Report report = run_kernel(kernel, order, seed);
  if (report.error != cudaSuccess) return fail_device(report.error, report.text);
  if (const std::string damage = damaged_red_zone(); !damage.empty())
    fail_device(cudaErrorIllegalAddress, text("out of bounds: after kernel ", kernel.name, ": ", damage));
}

}  // namespace

std::shared_ptr<StreamState> DeviceQueue::stream_of(cudaStream_t handle) {
  if (handle != nullptr && handle != cudaStreamLegacy) return handle->state;
  const int device = current_device();
  {
    const Lock lock(mutex_);
    for (const auto& stream : defaults_)
      if (stream->device == device) return stream;
  }
  auto stream = make_stream(device, 0, true);
  const Lock lock(mutex_);
  defaults_.push_back(stream);
  return stream;
}

cudaError_t launch(const char* name, const void* kernel, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t handle,
                   std::function<void()> thread) {
  if (const cudaError_t error = call_error("launch"); error != cudaSuccess) return error;
  const uint64_t threads = static_cast<uint64_t>(block.x) * block.y * block.z;
  if (threads == 0 || threads > 1024 || block.z > 64 || grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu ||
      grid.y > 65535 || grid.z > 65535)
    return remember(cudaErrorInvalidConfiguration);
  const size_t allowed = allowed_dynamic_bytes(kernel);
  if (shared_bytes > allowed) return remember(cudaErrorInvalidValue);
  const size_t limit = allowed > common_shared_bytes ? most_shared_bytes : common_shared_bytes;
  return queue_work(handle, name,
                    [queued = Kernel{name, grid, block, shared_bytes, limit, std::move(thread)}] { run_queued_kernel(queued); });
}

}  // namespace cuda_on_host

using namespace cuda_on_host;

namespace {

// The error of waiting for, or asking about, a stream or event that is captured; it ends the capture.
cudaError_t captured(const std::shared_ptr<Capture>& capture, cudaError_t error, const char* function) {
  if (!capture || capture->over) return cudaSuccess;
  capture->invalid = true;
  return remember(error, text(function, " of what is being captured"));
}

cudaError_t synchronize_stream(cudaStream_t handle, const char* function) {
  if (const cudaError_t error = call_error(function); error != cudaSuccess) return error;
  if (on_device_thread()) return remember(cudaErrorNotPermitted, text(function, " inside a host function"));
  DeviceQueue& queue = DeviceQueue::only();
  const auto stream = queue.stream_of(handle);
  auto lock = queue.lock();
  if (const cudaError_t error = captured(stream->capture, cudaErrorStreamCaptureUnsupported, function); error != cudaSuccess) return error;
  queue.wait(lock, {stream, stream->queued});
  return remember(sticky_error());
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* handle, unsigned flags, int priority) {
  if (const cudaError_t error = call_error("cudaStreamCreateWithPriority"); error != cudaSuccess) return error;
  *handle = new CUstream_st{DeviceQueue::only().make_stream(current_device(), priority, (flags & cudaStreamNonBlocking) == 0)};
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* handle, unsigned flags) { return cudaStreamCreateWithPriority(handle, flags, 0); }
cudaError_t cudaStreamCreate(cudaStream_t* handle) { return cudaStreamCreateWithPriority(handle, cudaStreamDefault, 0); }

cudaError_t cudaStreamDestroy(cudaStream_t handle) {
  DeviceQueue::only().remove_stream(handle->state);
  delete handle;
  return sticky_error();
}

cudaError_t cudaStreamGetPriority(cudaStream_t handle, int* priority) {
  *priority = DeviceQueue::only().stream_of(handle)->priority;
  return sticky_error();
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0, *greatest = -5;
  return sticky_error();
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) { return synchronize_stream(handle, "cudaStreamSynchronize"); }

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  if (const cudaError_t error = call_error("cudaStreamQuery"); error != cudaSuccess) return error;
  DeviceQueue& queue = DeviceQueue::only();
  const auto stream = queue.stream_of(handle);
  const auto lock = queue.lock();
  if (const cudaError_t error = captured(stream->capture, cudaErrorStreamCaptureUnsupported, "cudaStreamQuery"); error != cudaSuccess)
    return error;
  return Point{stream, stream->queued}.reached() ? sticky_error() : cudaErrorNotReady;
}

cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = call_error("cudaDeviceSynchronize"); error != cudaSuccess) return error;
  if (const cudaError_t error = forbidden_in_capture("cudaDeviceSynchronize"); error != cudaSuccess) return error;
  if (on_device_thread()) return remember(cudaErrorNotPermitted, "cudaDeviceSynchronize inside a host function");
  DeviceQueue& queue = DeviceQueue::only();
  auto lock = queue.lock();
  queue.wait_for_all(lock);
  return remember(sticky_error());
}

cudaError_t cudaLaunchHostFunc(cudaStream_t handle, cudaHostFn_t function, void* data) {
  return queue_work(handle, "cudaLaunchHostFunc", [function, data] { function(data); });
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (const cudaError_t error = call_error("cudaEventCreateWithFlags"); error != cudaSuccess) return error;
  *event = new CUevent_st;
  (*event)->state.device = current_device();
  (*event)->state.timed = (flags & cudaEventDisableTiming) == 0;
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return sticky_error();
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  if (const cudaError_t error = call_error("cudaEventRecord"); error != cudaSuccess) return error;
  DeviceQueue& queue = DeviceQueue::only();
  const auto stream = queue.stream_of(handle);
  const auto lock = queue.lock();
  EventState& state = event->state;
  if (state.device != stream->device)
    return remember(cudaErrorInvalidResourceHandle, "cudaEventRecord of an event of another device than the stream's");
  if (stream->capture) {
    state.capture = stream->capture;
    state.tail = stream->tail;
    return cudaSuccess;
  }
  state.capture.reset();
  state.time = std::make_shared<std::chrono::steady_clock::time_point>();
  queue.append(lock, stream, "event", [time = state.time] {
    *time = std::chrono::steady_clock::now();
    return true;
  });
  state.point = {stream, stream->queued};
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) { return cudaEventRecord(event, stream); }

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  if (const cudaError_t error = call_error("cudaStreamWaitEvent"); error != cudaSuccess) return error;
  DeviceQueue& queue = DeviceQueue::only();
  const auto stream = queue.stream_of(handle);
  const auto lock = queue.lock();
  const EventState& state = event->state;
  if (state.capture && !state.capture->over) {
    if (stream->capture && stream->capture != state.capture)
      return remember(cudaErrorStreamCaptureMerge, "a captured stream waits for an event of another capture");
    if (!stream->capture) stream->tail.clear();
    stream->capture = state.capture;
    for (const int node : state.tail)
      if (std::find(stream->tail.begin(), stream->tail.end(), node) == stream->tail.end()) stream->tail.push_back(node);
    return cudaSuccess;
  }
  if (stream->capture) {
    stream->capture->invalid = true;
    return remember(cudaErrorStreamCaptureIsolation, "a captured stream waits for an event that was not recorded in its capture");
  }
  if (planned("no_wait")) return cudaSuccess;
  if (state.point.stream != nullptr && state.point.stream != stream) queue.append(lock, stream, "wait", nullptr, {state.point});
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (const cudaError_t error = call_error("cudaEventQuery"); error != cudaSuccess) return error;
  const auto lock = DeviceQueue::only().lock();
  if (const cudaError_t error = captured(event->state.capture, cudaErrorCapturedEvent, "cudaEventQuery"); error != cudaSuccess)
    return error;
  return event->state.point.reached() ? sticky_error() : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const cudaError_t error = call_error("cudaEventSynchronize"); error != cudaSuccess) return error;
  if (on_device_thread()) return remember(cudaErrorNotPermitted, "cudaEventSynchronize inside a host function");
  DeviceQueue& queue = DeviceQueue::only();
  auto lock = queue.lock();
  if (const cudaError_t error = captured(event->state.capture, cudaErrorCapturedEvent, "cudaEventSynchronize"); error != cudaSuccess)
    return error;
  const Point point = event->state.point;
  queue.wait(lock, point);
  return remember(sticky_error());
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (const cudaError_t error = call_error("cudaEventElapsedTime"); error != cudaSuccess) return error;
  const auto lock = DeviceQueue::only().lock();
  const EventState &a = begin->state, &b = end->state;
  if (!a.timed || !b.timed || !a.time || !b.time) return remember(cudaErrorInvalidResourceHandle);
  if (!a.point.reached() || !b.point.reached()) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(*b.time - *a.time).count();
  return cudaSuccess;
}

}  // extern "C"
