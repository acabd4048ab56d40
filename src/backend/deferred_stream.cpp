#include <deque>
#include <exception>
#include <mutex>
#include <vector>

#include "dmuon/backend/stream.h"
#include "dmuon/core/error.h"
#include "dmuon/core/random.h"

namespace dmuon {
namespace {

// Either work or a wait for an event, in submission order.
struct Item {
  std::function<void()> work;
  Event wait_for;
};

struct Queue {
  std::deque<Item> items;
  int64_t submitted = 0;
  int64_t completed = 0;  // finished or dropped
  std::exception_ptr error;
  int64_t failed = 0;    // the item that threw `error`
  bool running = false;  // its head is being run: work that waits runs other streams only

  bool head_is_ready() const { return !running && !items.empty() && (error || items.front().wait_for.done()); }
};

}  // namespace

// One lock for all streams of a scheduler, recursive because work may itself submit, record or wait.
struct DeferredScheduler::Shared {
  explicit Shared(uint64_t seed) : random(seed, RandomStream::test) {}

  std::recursive_mutex mutex;
  Random random;
  uint64_t choices = 0;
  std::vector<Queue*> queues;  // in order of creation, so that the choice depends on the seed only

  void run_head(Queue& queue) {
    Item item = std::move(queue.items.front());
    queue.items.pop_front();
    if (!queue.error) {
      queue.running = true;
      try {
        item.wait_for.wait();  // has happened: rethrows the error of a failed stream
        if (item.work) item.work();
      } catch (...) {
        queue.error = std::current_exception();
        queue.failed = queue.completed + 1;
      }
      queue.running = false;
    }
    item = {};
    ++queue.completed;
  }

  // Runs heads of random streams until item `target` of `queue` has completed.
  void run_until(const Queue& queue, int64_t target) {
    while (queue.completed < target) {
      std::vector<Queue*> ready;
      Queue* foreign = nullptr;  // its head waits for an event of another kind of stream
      for (Queue* candidate : queues) {
        if (candidate->head_is_ready()) ready.push_back(candidate);
        if (!candidate->running && !candidate->items.empty()) foreign = candidate;
      }
      if (!ready.empty()) {
        run_head(*ready[random.below(ready.size(), choices++)]);
      } else if (foreign) {
        const Event event = foreign->items.front().wait_for;
        foreign->running = true;  // a nested wait must not come back here
        try {
          event.wait();
        } catch (...) {  // reaches the stream when its head runs
        }
        foreign->running = false;
        if (!event.done()) throw DeviceError("deferred streams: an awaited event can never happen");
      } else {
        throw DeviceError("deferred streams: work waits for a later mark of its own stream");
      }
    }
  }

  void wait_for(const Queue& queue, int64_t target) {
    run_until(queue, target);
    if (queue.error && queue.failed <= target) std::rethrow_exception(queue.error);
  }
};

DeferredScheduler::DeferredScheduler(uint64_t seed) : shared_(std::make_shared<Shared>(seed)) {}
DeferredScheduler::~DeferredScheduler() = default;

std::unique_ptr<Stream> DeferredScheduler::make_stream() {
  struct Mark final : Event::State {
    Mark(std::shared_ptr<Shared> s, std::shared_ptr<Queue> q, int64_t i) : shared(std::move(s)), queue(std::move(q)), item(i) {}
    bool done() const override {
      std::lock_guard lock(shared->mutex);
      return queue->completed >= item;
    }
    void wait() override {
      std::lock_guard lock(shared->mutex);
      shared->wait_for(*queue, item);
    }
    std::shared_ptr<Shared> shared;
    std::shared_ptr<Queue> queue;
    int64_t item;
  };

  class DeferredStream final : public Stream {
   public:
    explicit DeferredStream(std::shared_ptr<Shared> shared) : shared_(std::move(shared)), queue_(std::make_shared<Queue>()) {
      std::lock_guard lock(shared_->mutex);
      shared_->queues.push_back(queue_.get());
    }
    ~DeferredStream() override {
      std::lock_guard lock(shared_->mutex);
      try {
        shared_->run_until(*queue_, queue_->submitted);
      } catch (...) {  // a destructor reports nothing; synchronize() does
      }
      std::erase(shared_->queues, queue_.get());
    }

    bool runs_inline() const override { return false; }
    void submit(std::function<void()> work) override { push({std::move(work), {}}); }
    Event record() override {
      std::lock_guard lock(shared_->mutex);
      return Event(std::make_shared<Mark>(shared_, queue_, queue_->submitted));
    }
    void wait(const Event& event) override {
      if (event.state()) push({nullptr, event});
    }
    void synchronize() override {
      std::lock_guard lock(shared_->mutex);
      shared_->wait_for(*queue_, queue_->submitted);
    }

   private:
    void push(Item item) {
      std::lock_guard lock(shared_->mutex);
      queue_->items.push_back(std::move(item));
      ++queue_->submitted;
    }
    std::shared_ptr<Shared> shared_;
    std::shared_ptr<Queue> queue_;
  };

  return std::make_unique<DeferredStream>(shared_);
}

}  // namespace dmuon
