#include "dmuon/backend/stream.h"

#include <pthread.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

namespace dmuon {
namespace {

class InlineStream final : public Stream {
 public:
  bool runs_inline() const override { return true; }
  void submit(std::function<void()> work) override { work(); }
  Event record() override { return {}; }
  void wait(const Event& event) override { event.wait(); }
  void synchronize() override {}
};

// The queue of a worker. Items are numbered from 1 in order of submission; an event is the number of the last item
// before it. Lives as long as any event, so that events may outlive their stream.
struct Queue {
  std::mutex mutex;
  std::condition_variable work_or_close;
  std::condition_variable progress;
  std::deque<std::function<void()>> items;
  int64_t submitted = 0;
  int64_t completed = 0;  // finished or dropped
  std::exception_ptr error;
  int64_t failed = 0;  // the item that threw `error`
  bool closing = false;

  void wait_for(int64_t item) {
    std::unique_lock lock(mutex);
    progress.wait(lock, [&] { return completed >= item; });
    if (error && failed <= item) std::rethrow_exception(error);
  }

  void run() {
    std::unique_lock lock(mutex);
    while (true) {
      work_or_close.wait(lock, [&] { return closing || !items.empty(); });
      if (items.empty()) return;
      std::function<void()> work = std::move(items.front());
      items.pop_front();
      const bool drop = error != nullptr;
      lock.unlock();
      std::exception_ptr thrown;
      if (!drop) {
        try {
          work();
        } catch (...) {
          thrown = std::current_exception();
        }
      }
      work = nullptr;  // whoever waits finds the tensors of finished work released
      lock.lock();
      ++completed;
      if (thrown) {
        error = std::move(thrown);
        failed = completed;
      }
      progress.notify_all();
    }
  }
};

struct QueueMark final : Event::State {
  QueueMark(std::shared_ptr<Queue> q, int64_t i) : queue(std::move(q)), item(i) {}
  bool done() const override {
    std::lock_guard lock(queue->mutex);
    return queue->completed >= item;
  }
  void wait() override { queue->wait_for(item); }

  std::shared_ptr<Queue> queue;
  int64_t item;
};

class WorkerStream final : public Stream {
 public:
  explicit WorkerStream(std::string_view name) : thread_([queue = queue_] { queue->run(); }) {
    pthread_setname_np(thread_.native_handle(), std::string(name.substr(0, 15)).c_str());
  }
  ~WorkerStream() override {
    {
      std::lock_guard lock(queue_->mutex);
      queue_->closing = true;
    }
    queue_->work_or_close.notify_all();
    thread_.join();
  }

  bool runs_inline() const override { return false; }

  void submit(std::function<void()> work) override {
    {
      std::lock_guard lock(queue_->mutex);
      queue_->items.push_back(std::move(work));
      ++queue_->submitted;
    }
    queue_->work_or_close.notify_one();
  }

  Event record() override {
    std::lock_guard lock(queue_->mutex);
    return Event(std::make_shared<QueueMark>(queue_, queue_->submitted));
  }

  // The worker itself blocks. An event can only be waited for after it was recorded, so waits form no cycle.
  void wait(const Event& event) override {
    if (event.state()) submit([event] { event.wait(); });
  }

  void synchronize() override {
    int64_t last = 0;
    {
      std::lock_guard lock(queue_->mutex);
      last = queue_->submitted;
    }
    queue_->wait_for(last);
  }

 private:
  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
  std::thread thread_;  // last: it starts when everything else exists
};

}  // namespace

std::unique_ptr<Stream> make_inline_stream() { return std::make_unique<InlineStream>(); }
std::unique_ptr<Stream> make_worker_stream(std::string_view name) { return std::make_unique<WorkerStream>(name); }

}  // namespace dmuon
