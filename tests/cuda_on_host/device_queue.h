// The device's thread, streams, events and captures behind stream_queue.h. Internal to the runtime's stand-in.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "cuda_on_host/graphs.h"

namespace cuda_on_host {

class StreamState;

// A point in a stream's work: reached when so many of its items are over.
struct Point {
  std::shared_ptr<StreamState> stream;
  uint64_t items = 0;
  bool reached() const;
};

struct Item {
  std::function<bool()> work;  // none: only a point
  std::vector<Point> after;
};

class StreamState {
 public:
  int device = 0, priority = 0;
  bool blocking = false;  // waits for the default stream, and that for it
  uint64_t queued = 0, done = 0;
  std::deque<Item> items;
  // While it is captured: the capture and the nodes that its next work comes after.
  std::shared_ptr<Capture> capture;
  std::vector<int> tail;
};

// What cudaEventRecord last made of an event.
struct EventState {
  Point point;
  std::shared_ptr<std::chrono::steady_clock::time_point> time;  // when the point was reached
  std::shared_ptr<Capture> capture;                             // it was recorded in
  std::vector<int> tail;
  int device = 0;
  bool timed = true;
};

// Thread-safe. Functions that take a lock of the queue say so by a parameter.
class DeviceQueue {
 public:
  using Lock = std::unique_lock<std::mutex>;
  static DeviceQueue& only();
  ~DeviceQueue();

  Lock lock() { return Lock(mutex_); }
  std::shared_ptr<StreamState> make_stream(int device, int priority, bool blocking);
  void remove_stream(const std::shared_ptr<StreamState>& stream);
  // The default stream of the device for a null handle.
  std::shared_ptr<StreamState> stream_of(cudaStream_t handle);

  // Queues an item, or makes it a node of the capture that the stream is in.
  void append(const Lock& lock, const std::shared_ptr<StreamState>& stream, const std::string& name, std::function<bool()> work,
              std::vector<Point> after = {});
  void wait(Lock& lock, const Point& point);
  // For everything queued so far.
  void wait_for_all(Lock& lock);
  const std::vector<std::shared_ptr<StreamState>>& streams(const Lock&) const { return streams_; }
  // Drops what is queued, after work that failed.
  void drop_all(const Lock& lock);
  bool on_thread() const { return std::this_thread::get_id() == thread_.get_id(); }
  uint64_t random(uint64_t below) { return generator_() % below; }

 private:
  DeviceQueue();
  void run();
  bool run_one(Lock& lock);
  bool has_work() const;
  void waiting(int by);

  std::mutex mutex_;
  std::condition_variable work_, progress_;
  std::vector<std::shared_ptr<StreamState>> streams_, retired_;
  std::vector<std::shared_ptr<StreamState>> defaults_;
  std::chrono::steady_clock::time_point oldest_;
  int waiting_ = 0;
  bool stopping_ = false;
  std::mt19937_64 generator_;
  std::thread thread_;
};

}  // namespace cuda_on_host
