#include "cuda_on_host/device_queue.h"

#include <algorithm>
#include <cstdlib>

#include "cuda_on_host/errors.h"
#include "cuda_on_host/stream_queue.h"

namespace cuda_on_host {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto hold = std::chrono::milliseconds(1);

uint64_t seed() {
  const char* text = std::getenv("CUDA_ON_HOST_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

}  // namespace

bool Point::reached() const { return stream == nullptr || stream->done >= items; }

DeviceQueue& DeviceQueue::only() {
  static DeviceQueue queue;
  return queue;
}

DeviceQueue::DeviceQueue() : generator_(seed()), thread_([this] { run(); }) {}

DeviceQueue::~DeviceQueue() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
    work_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<StreamState> DeviceQueue::make_stream(int device, int priority, bool blocking) {
  auto stream = std::make_shared<StreamState>();
  stream->device = device;
  stream->priority = priority;
  stream->blocking = blocking;
  const Lock lock(mutex_);
  streams_.push_back(stream);
  return stream;
}

void DeviceQueue::remove_stream(const std::shared_ptr<StreamState>& stream) {
  const Lock lock(mutex_);
  if (stream->items.empty())
    streams_.erase(std::remove(streams_.begin(), streams_.end(), stream), streams_.end());
  else
    retired_.push_back(stream);  // what is queued still runs
}

void DeviceQueue::append(const Lock&, const std::shared_ptr<StreamState>& stream, const std::string& name, std::function<bool()> work,
                         std::vector<Point> after) {
  if (stream->capture) {
    stream->tail = {stream->capture->add(name, std::move(work), stream->tail)};
    return;
  }
  // The default stream comes after all earlier work of blocking streams of its device, and before all later.
  const bool is_default = std::find(defaults_.begin(), defaults_.end(), stream) != defaults_.end();
  if (stream->blocking)
    for (const auto& other : is_default ? streams_ : defaults_)
      if (other != stream && other->blocking && other->device == stream->device && other->done < other->queued)
        after.push_back({other, other->queued});
  if (!has_work()) oldest_ = Clock::now();
  stream->items.push_back({std::move(work), std::move(after)});
  ++stream->queued;
  work_.notify_one();
}

bool DeviceQueue::has_work() const {
  return std::any_of(streams_.begin(), streams_.end(), [](const auto& stream) { return !stream->items.empty(); });
}

void DeviceQueue::wait(Lock& lock, const Point& point) {
  if (point.reached()) return;
  ++waiting_;
  work_.notify_one();
  progress_.wait(lock, [&] { return point.reached(); });
  --waiting_;
}

void DeviceQueue::wait_for_all(Lock& lock) {
  const auto streams = streams_;
  std::vector<Point> points;
  for (const auto& stream : streams) points.push_back({stream, stream->queued});
  for (const Point& point : points) wait(lock, point);
}

void DeviceQueue::drop_all(const Lock&) {
  for (const auto& stream : streams_) {
    // The item that runs is counted by who runs it.
    stream->done = stream->queued;
    stream->items.clear();
  }
  progress_.notify_all();
}

void DeviceQueue::run() {
  Lock lock(mutex_);
  int idle = 0;
  for (;;) {
    if (stopping_) return;
    if (!has_work()) {
      work_.wait(lock, [&] { return stopping_ || has_work(); });
      continue;
    }
    if (waiting_ == 0 && Clock::now() < oldest_ + hold) {
      work_.wait_until(lock, oldest_ + hold);
      continue;
    }
    if (run_one(lock)) {
      idle = 0;
      continue;
    }
    // Everything waits for another process, or for a host thread to queue more.
    ++idle;
    lock.unlock();
    if (idle < 50)
      std::this_thread::yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(idle < 500 ? 20 : 200));
    lock.lock();
  }
}

// One item of some stream; false: none could be finished. The streams' order is their rank for some while, so that now and then
// one of them falls far behind the others, and then changes.
bool DeviceQueue::run_one(Lock& lock) {
  if (random(8) == 0) std::shuffle(streams_.begin(), streams_.end(), generator_);
  const auto streams = streams_;
  for (const auto& stream : streams) {
    if (stream->items.empty()) continue;
    Item& item = stream->items.front();
    if (!std::all_of(item.after.begin(), item.after.end(), [](const Point& point) { return point.reached(); })) continue;
    bool over = true;
    if (item.work) {
      // Moved out: the queue may be dropped, or grow, while the work runs.
      std::function<bool()> work = std::move(item.work);
      const uint64_t before = stream->done;
      lock.unlock();
      over = work();
      if (over) work = nullptr;  // what it holds may call back when it goes
      lock.lock();
      if (stream->done != before || stream->items.empty()) {  // dropped by a failure
        progress_.notify_all();
        return true;
      }
      if (!over) stream->items.front().work = std::move(work);
    }
    if (!over) continue;
    stream->items.pop_front();
    ++stream->done;
    if (stream->items.empty()) {
      const auto retired = std::find(retired_.begin(), retired_.end(), stream);
      if (retired != retired_.end()) {
        retired_.erase(retired);
        streams_.erase(std::remove(streams_.begin(), streams_.end(), stream), streams_.end());
      }
    }
    if (waiting_ > 0) progress_.notify_all();
    return true;
  }
  return false;
}

cudaError_t queue_polled(cudaStream_t handle, std::function<bool()> poll) {
  if (const cudaError_t error = call_error("queue_polled"); error != cudaSuccess) return error;
  DeviceQueue& queue = DeviceQueue::only();
  const auto stream = queue.stream_of(handle);
  queue.append(queue.lock(), stream, "polled work", std::move(poll));
  return cudaSuccess;
}

cudaError_t queue_work(cudaStream_t handle, const std::string& name, std::function<void()> work) {
  if (const cudaError_t error = call_error(name.c_str()); error != cudaSuccess) return error;
  DeviceQueue& queue = DeviceQueue::only();
  const auto stream = queue.stream_of(handle);
  queue.append(queue.lock(), stream, name, [work = std::move(work)] {
    work();
    return true;
  });
  return cudaSuccess;
}

void fail_device(cudaError_t error, const std::string& text) {
  set_sticky_error(error, text);
  DeviceQueue& queue = DeviceQueue::only();
  queue.drop_all(queue.lock());
}

bool on_device_thread() { return DeviceQueue::only().on_thread(); }

}  // namespace cuda_on_host
