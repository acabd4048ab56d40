// Ordered queues of work and marks in them. On CUDA these are the real ones. On the host the compute stream runs work
// inline on the calling thread; a communication stream is one worker thread; the deferred test double queues work and
// runs the streams in random legal order, so that a missing wait fails.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace dmuon {

// A mark in a stream. Copies share it. A default-constructed event has always happened.
class Event {
 public:
  struct State {
    virtual ~State() = default;
    virtual bool done() const = 0;
    virtual void wait() = 0;
  };

  Event() = default;
  explicit Event(std::shared_ptr<State> state) : state_(std::move(state)) {}

  // True when all work before the mark has finished, successfully or not.
  bool done() const { return !state_ || state_->done(); }
  // Blocks the calling thread until the mark; rethrows the error of the first failed work before it in its stream.
  void wait() const {
    if (state_) state_->wait();
  }
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

class Stream {
 public:
  virtual ~Stream() = default;  // finishes (or, after an error, drops) queued work

  // True when submit() runs the work before it returns.
  virtual bool runs_inline() const = 0;
  // Appends host work. Work may throw: later work of this stream is then dropped, and the error is rethrown by
  // every wait on an event recorded after it and by synchronize().
  virtual void submit(std::function<void()> work) = 0;
  virtual Event record() = 0;
  // Work submitted later starts only after the event. On an inline stream this blocks the caller.
  virtual void wait(const Event& event) = 0;
  // Blocks until all submitted work has finished; rethrows the first error.
  virtual void synchronize() = 0;
};

// Runs everything at once on the calling thread. An error leaves submit() itself; later work runs.
std::unique_ptr<Stream> make_inline_stream();
// One thread that runs work in order; never enters an OpenMP region itself. `name` names the thread (15 characters).
std::unique_ptr<Stream> make_worker_stream(std::string_view name);

// Test double: streams made by one scheduler queue their work; any wait runs heads of random streams, as far as events
// allow, until the awaited mark is reached. The order depends on the seed only.
class DeferredScheduler {
 public:
  explicit DeferredScheduler(uint64_t seed);
  ~DeferredScheduler();
  std::unique_ptr<Stream> make_stream();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace dmuon
