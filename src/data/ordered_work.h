// Work on many threads whose results are taken in the order in which it was found.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace dmuon {

// `produce` fills a job and says whether there was one, `work` computes it, `consume` takes it. Only `work` runs on several
// threads (`threads` with the caller's, which helps where it would wait); the other two run on the caller's, `consume` in the
// order of `produce`. At most `most_jobs` jobs exist at a time, and none is added while those that wait for `consume` weigh
// `most_weight` or more; each is used again, so that it may keep its memory. The error of the earliest job that fails is thrown, after what
// precedes it was consumed, whatever the number of threads.
template <class Job>
class OrderedWork {
 public:
  OrderedWork(
      int threads, size_t most_jobs, std::function<bool(Job&)> produce, std::function<void(Job&)> work, std::function<void(Job&)> consume,
      size_t most_weight = 1, std::function<size_t(const Job&)> weight = [](const Job&) { return size_t{0}; })
      : most_jobs_(most_jobs),
        most_weight_(most_weight),
        produce_(std::move(produce)),
        work_(std::move(work)),
        consume_(std::move(consume)),
        weight_(std::move(weight)) {
    try {
      for (int i = 1; i < threads; ++i) helpers_.emplace_back([this] { help(); });
    } catch (const std::system_error&) {
      // The system gives no more threads: those that there are do the work.
    }
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
      if (more_ && in_order_.size() < most_jobs_ && (in_order_.empty() || in_order_weight_ < most_weight_)) {
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
    size_t weight = 0;
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
    in_order_weight_ -= slot->weight;
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
    slot->weight = 0;
    try {
      more_ = produce_(slot->job);
      if (!more_) return;
      slot->weight = weight_(slot->job);
    } catch (...) {
      more_ = false;
      slot->error = std::current_exception();
      slot->done = true;
    }
    in_order_weight_ += slot->weight;
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

  const size_t most_jobs_, most_weight_;
  std::function<bool(Job&)> produce_;
  std::function<void(Job&)> work_, consume_;
  std::function<size_t(const Job&)> weight_;
  bool more_ = true;
  size_t in_order_weight_ = 0;
  std::deque<std::unique_ptr<Slot>> in_order_;
  std::vector<std::unique_ptr<Slot>> free_;
  std::mutex mutex_;  // of what follows, and of done and error in the slots
  std::condition_variable work_there_, first_done_;
  std::deque<Slot*> waiting_;
  bool ended_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace dmuon
