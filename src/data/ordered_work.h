// Work on many threads whose results are taken in the order in which it was found.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace dmuon {

// `produce` fills a job and says whether there was one, `work` computes it, `consume` takes it. Only `work` runs on several
// threads (`threads` with the caller's, which helps where it would wait); the other two run on the caller's, `consume` in the
// order of `produce`. At most `most_jobs` jobs exist at a time; each is used again, so that it may keep its memory. The error
// of the earliest job that fails is thrown, after what precedes it was consumed, whatever the number of threads.
template <class Job>
class OrderedWork {
 public:
  OrderedWork(int threads, size_t most_jobs, std::function<bool(Job&)> produce, std::function<void(Job&)> work,
              std::function<void(Job&)> consume)
      : most_jobs_(most_jobs), produce_(std::move(produce)), work_(std::move(work)), consume_(std::move(consume)) {
    for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
  }
  ~OrderedWork() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
      waiting_.clear();
    }
    work_there_.notify_all();
    for (std::thread& helper : helpers_) helper.join();
  }
  OrderedWork(const OrderedWork&) = delete;
  OrderedWork& operator=(const OrderedWork&) = delete;

  void run() {
    while (more_ || !in_order_.empty()) {
      if (consume_first()) continue;
      if (more_ && in_order_.size() < most_jobs_) {
        produce_one();
        continue;
      }
      std::unique_lock lock(mutex_);
      if (!waiting_.empty())
        work_on_one(lock);
      else
        first_done_.wait(lock, [&] { return in_order_.front()->done; });
    }
  }

 private:
  struct Slot {
    Job job;
    bool done = false;
    std::exception_ptr error;
  };

  bool consume_first() {
    if (in_order_.empty()) return false;
    {
      const std::lock_guard lock(mutex_);
      if (!in_order_.front()->done) return false;
    }
    std::unique_ptr<Slot> slot = std::move(in_order_.front());
    in_order_.pop_front();
    if (slot->error) std::rethrow_exception(slot->error);
    consume_(slot->job);
    free_.push_back(std::move(slot));
    return true;
  }

  void produce_one() {
    std::unique_ptr<Slot> slot;
    if (free_.empty()) {
      slot = std::make_unique<Slot>();
    } else {
      slot = std::move(free_.back());
      free_.pop_back();
    }
    slot->done = false;
    try {
      more_ = produce_(slot->job);
      if (!more_) return;
    } catch (...) {
      more_ = false;
      slot->error = std::current_exception();
      slot->done = true;
    }
    in_order_.push_back(std::move(slot));
    if (!more_) return;
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(in_order_.back().get());
    }
    work_there_.notify_one();
  }

  // With the lock held and work waiting.
  void work_on_one(std::unique_lock<std::mutex>& lock) {
    Slot* const slot = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    try {
      work_(slot->job);
    } catch (...) {
      slot->error = std::current_exception();
    }
    lock.lock();
    slot->done = true;
    first_done_.notify_one();
  }

  void help() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_there_.wait(lock, [&] { return ended_ || !waiting_.empty(); });
      if (ended_) return;
      work_on_one(lock);
    }
  }

  const size_t most_jobs_;
  std::function<bool(Job&)> produce_;
  std::function<void(Job&)> work_, consume_;
  bool more_ = true;
  std::deque<std::unique_ptr<Slot>> in_order_;
  std::vector<std::unique_ptr<Slot>> free_;
  std::mutex mutex_;  // of what follows, and of done and error in the slots
  std::condition_variable work_there_, first_done_;
  std::deque<Slot*> waiting_;
  bool ended_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace dmuon
