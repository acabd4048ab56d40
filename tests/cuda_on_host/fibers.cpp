#include "cuda_on_host/fibers.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "cuda_on_host/fiber_pool.h"
#include "cuda_on_host/language.h"
#include "cuda_on_host/shared_memory.h"
#include "dmuon/core/text.h"

#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim

namespace cuda_on_host {

Coordinates coordinates;
uint64_t block_serial = 0;

namespace {

constexpr int warp = 32;
constexpr int most_threads = 1024;
constexpr int most_groups = 64;  // per warp: each lane holds at most one and waits for one

struct Place {
  const char* file = nullptr;
  int line = 0;
  bool operator==(const Place& other) const { return line == other.line && (file == other.file || !std::strcmp(file, other.file)); }
  std::string text() const {
    const char* name = std::strrchr(file, '/');
    return std::string(name ? name + 1 : file) + ":" + std::to_string(line);
  }
};

// What the lanes of one exchange gave; alive until every lane has begun its next one.
struct Group {
  unsigned mask = 0;  // who gave a value
  unsigned char values[warp][16];
};

struct Thread {
  Fiber* fiber = nullptr;  // it waits in
  enum class State { unstarted, running, at_barrier, exchanging, ended } state = State::unstarted;
  Place place;  // where it waits
  unsigned mask = 0;
  unsigned held = most_groups;  // the group of its last exchange
  unsigned char value[16];
};

struct Warp {
  unsigned ended = 0, exchanging = 0;  // lanes
  uint32_t exchanges = 0;
  std::array<int, most_groups> users;  // of each group: lanes that may still read it
  std::array<Group, most_groups> groups;
};

using dmuon::text;

std::string at(const uint3& i) { return text('(', i.x, ", ", i.y, ", ", i.z, ')'); }

class Executor {
 public:
  Report run(const Kernel& kernel, Order order, uint64_t seed);
  void barrier(Place place);
  int count_votes(bool vote, Place place);
  unsigned exchange(unsigned mask, const void* value, size_t bytes, Place place);
  const void* read_lane(unsigned token, int lane);
  unsigned ballot(unsigned token) const;
  [[noreturn]] void fail(cudaError_t error, std::string what);

  bool running() const { return kernel_ != nullptr; }
  int self() const { return self_; }
  std::string where(int thread) const {
    return "kernel " + kernel_->name + ", block " + at(coordinates.block) + ", thread " + at(coordinates_[static_cast<size_t>(thread)]);
  }
  Position position() const { return {self_, barriers_, warps_[static_cast<size_t>(self_ / warp)].exchanges}; }
  const FiberPool& pool() const { return pool_; }

 private:
  static void body(void* self) { static_cast<Executor*>(self)->run_threads(); }
  void run_threads();
  void run_block();
  void ended();
  void complete_exchange(int w, int member);
  void wait(Thread::State state, Place place);
  Fiber* next();
  void stuck();
  void order_threads(Order order, uint64_t seed);
  Thread& thread(int i) { return threads_[static_cast<size_t>(i)]; }

  FiberPool pool_{&Executor::body, this};
  const Kernel* kernel_ = nullptr;
  Report report_;
  dim3 block_{0, 0, 0};  // of coordinates_
  int count_ = 0;        // threads of a block
  int begun_ = 0, at_barrier_ = 0, ended_ = 0;
  int self_ = 0;
  uint32_t barriers_ = 0;
  int first_ = 0;  // thread at the barrier
  int votes_ = 0, counted_votes_ = 0;
  std::vector<Fiber*> ready_;  // the last goes on first
  std::vector<int> order_;
  std::array<uint3, most_threads> coordinates_;
  std::array<Thread, most_threads> threads_;
  std::array<Warp, most_threads / warp> warps_;
};

// Never destroyed: a process may end while fibers hold what a kernel was doing.
Executor& executor() {
  static auto* only = new Executor;
  return *only;
}

void Executor::order_threads(Order order, uint64_t seed) {
  order_.resize(static_cast<size_t>(count_));
  std::iota(order_.begin(), order_.end(), 0);
  if (order == Order::reverse) std::reverse(order_.begin(), order_.end());
  if (order == Order::random) std::shuffle(order_.begin(), order_.end(), std::minstd_rand(static_cast<unsigned>(seed)));
}

Report Executor::run(const Kernel& kernel, Order order, uint64_t seed) {
  kernel_ = &kernel;
  report_ = {};
  coordinates.grid_size = kernel.grid;
  coordinates.block_size = kernel.block;
  count_ = static_cast<int>(kernel.block.x * kernel.block.y * kernel.block.z);
  if (block_.x != kernel.block.x || block_.y != kernel.block.y || block_.z != kernel.block.z) {
    block_ = kernel.block;
    size_t i = 0;
    for (uint3 t{0, 0, 0}; t.z < block_.z; ++t.z)
      for (t.y = 0; t.y < block_.y; ++t.y)
        for (t.x = 0; t.x < block_.x; ++t.x) coordinates_[i++] = t;
  }
  order_threads(order, seed);
  begin_shared_memory(kernel.shared_bytes, kernel.shared_limit);
  const uint64_t blocks = static_cast<uint64_t>(kernel.grid.x) * kernel.grid.y * kernel.grid.z;
  // A step that shares no factor with the count visits every block once.
  uint64_t index = order == Order::forward ? 0 : blocks - 1, step = order == Order::forward ? 1 : blocks - 1;
  if (order == Order::random && blocks > 2) {
    std::minstd_rand random(static_cast<unsigned>(seed));
    index = random() % blocks;
    do step = 1 + random() % (blocks - 1);
    while (std::gcd(step, blocks) != 1);
  }
  for (uint64_t done = 0; done < blocks && report_.error == cudaSuccess; ++done) {
    coordinates.block.x = static_cast<unsigned>(index % kernel.grid.x);
    coordinates.block.y = static_cast<unsigned>(index / kernel.grid.x % kernel.grid.y);
    coordinates.block.z = static_cast<unsigned>(index / kernel.grid.x / kernel.grid.y);
    index = (index + step) % blocks;
    run_block();
  }
  if (report_.error == cudaSuccess)
    if (const std::string text = end_shared_memory(); !text.empty())
      report_ = {cudaErrorIllegalAddress, "out of bounds: kernel " + kernel.name + ": " + text};
  kernel_ = nullptr;
  return report_;
}

void Executor::run_block() {
  ++block_serial;
  begun_ = at_barrier_ = ended_ = 0;
  barriers_ = 0;
  votes_ = 0;
  for (int i = 0; i < count_; ++i) {
    thread(i).state = Thread::State::unstarted;
    thread(i).held = most_groups;
  }
  for (int w = 0; w * warp < count_; ++w) {
    Warp& current = warps_[static_cast<size_t>(w)];
    const int lanes = std::min(warp, count_ - w * warp);
    current.ended = lanes == warp ? 0u : ~0u << lanes;
    current.exchanging = 0;
    current.exchanges = 0;
    current.users.fill(0);
  }
  pool_.switch_to(pool_.take());
  if (report_.error != cudaSuccess) {
    ready_.clear();
    pool_.reset();
  }
}

void Executor::run_threads() {
  for (;;) {
    while (begun_ < count_) {
      self_ = order_[static_cast<size_t>(begun_++)];
      thread(self_).state = Thread::State::running;
      coordinates.thread = coordinates_[static_cast<size_t>(self_)];
      kernel_->thread();
      ended();
    }
    Fiber* fiber = pool_.current();
    pool_.give_back(fiber);
    pool_.switch_to(next());
  }
}

// Where to go on when this fiber cannot: every thread that waits for nothing is in ready_.
Fiber* Executor::next() {
  if (!ready_.empty()) {
    Fiber* fiber = ready_.back();
    ready_.pop_back();
    return fiber;
  }
  if (begun_ < count_) return pool_.take();
  if (ended_ < count_) stuck();
  return pool_.main();
}

void Executor::ended() {
  const int w = self_ / warp;
  Warp& current = warps_[static_cast<size_t>(w)];
  current.ended |= 1u << (self_ % warp);
  thread(self_).state = Thread::State::ended;
  ++ended_;
  if (at_barrier_ > 0)
    fail(cudaErrorLaunchTimeout, "divergent barrier: the thread ended while thread " + at(coordinates_[static_cast<size_t>(first_)]) +
                                     " waits for it in __syncthreads at " + thread(first_).place.text());
  // Lanes that have ended are no longer waited for.
  while (current.exchanging != 0) {
    unsigned complete = 0;
    for (unsigned left = current.exchanging; left != 0 && complete == 0; left &= left - 1)
      if (const int lane = __builtin_ctz(left); (thread(w * warp + lane).mask & ~current.ended & ~current.exchanging) == 0)
        complete = 1u << lane;
    if (complete == 0) break;
    complete_exchange(w, w * warp + __builtin_ctz(complete));
  }
}

void Executor::wait(Thread::State state, Place place) {
  Thread& t = thread(self_);
  const int self = self_;
  t.state = state;
  t.place = place;
  t.fiber = pool_.current();
  pool_.switch_to(next());
  self_ = self;
  t.state = Thread::State::running;
  coordinates.thread = coordinates_[static_cast<size_t>(self)];
}

void Executor::barrier(Place place) {
  if (at_barrier_ == 0) first_ = self_;
  if (at_barrier_ > 0 && !(thread(first_).place == place))
    fail(cudaErrorLaunchTimeout, "divergent barrier: the thread is in __syncthreads at " + place.text() + " while thread " +
                                     at(coordinates_[static_cast<size_t>(first_)]) + " waits in the one at " + thread(first_).place.text());
  if (ended_ > 0)
    fail(cudaErrorLaunchTimeout, "divergent barrier: the thread is in __syncthreads at " + place.text() + ", but " +
                                     std::to_string(ended_) + " threads of its block have ended");
  if (++at_barrier_ < count_) return wait(Thread::State::at_barrier, place);
  at_barrier_ = 0;
  ++barriers_;
  counted_votes_ = votes_;
  votes_ = 0;
  for (int i = count_ - 1; i >= 0; --i)
    if (const int t = order_[static_cast<size_t>(i)]; t != self_) ready_.push_back(thread(t).fiber);
}

// The count is taken when the barrier completes and read before any thread can complete the next.
int Executor::count_votes(bool vote, Place place) {
  votes_ += vote ? 1 : 0;
  barrier(place);
  return counted_votes_;
}

unsigned Executor::exchange(unsigned mask, const void* value, size_t bytes, Place place) {
  Thread& t = thread(self_);
  const int w = self_ / warp;
  const unsigned bit = 1u << (self_ % warp);
  Warp& current = warps_[static_cast<size_t>(w)];
  if ((mask & bit) == 0)
    fail(cudaErrorIllegalInstruction,
         "the mask of the warp's exchange at " + place.text() + " lacks the calling lane " + std::to_string(self_ % warp));
  if (t.held != most_groups) {
    --current.users[t.held];
    t.held = most_groups;
  }
  std::memcpy(t.value, value, bytes);
  t.mask = mask;
  t.place = place;
  current.exchanging |= bit;
  if (((mask & ~current.ended) & ~current.exchanging) != 0)
    wait(Thread::State::exchanging, place);
  else
    complete_exchange(w, self_);
  return t.held;
}

// All lanes that lane `member` (its index in the block) waits for are there: gives all of them what each gave and makes those
// that wait ready.
void Executor::complete_exchange(int w, int member) {
  const int first = w * warp;
  Warp& current = warps_[static_cast<size_t>(w)];
  const Thread& t = thread(member);
  const unsigned expected = t.mask & ~current.ended;
  ++current.exchanges;
  unsigned number = 0;
  while (current.users[number] != 0) ++number;
  Group& group = current.groups[number];
  group.mask = expected;
  for (int lane = warp - 1; lane >= 0; --lane) {
    if ((expected >> lane & 1) == 0) continue;
    Thread& other = thread(first + lane);
    if (other.mask != t.mask || !(other.place == t.place))
      fail(cudaErrorIllegalInstruction, "lanes of one exchange disagree: lane " + std::to_string(member % warp) + " is at " +
                                            t.place.text() + ", lane " + std::to_string(lane) + " at " + other.place.text() +
                                            (other.mask != t.mask ? " with another mask" : ""));
    std::memcpy(group.values[lane], other.value, sizeof other.value);
    other.held = number;
    ++current.users[number];
    if (other.state == Thread::State::exchanging) ready_.push_back(other.fiber);
  }
  current.exchanging &= ~expected;
}

unsigned Executor::ballot(unsigned token) const {
  const Group& group = warps_[static_cast<size_t>(self_ / warp)].groups[token];
  unsigned result = 0;
  for (int lane = 0; lane < warp; ++lane)
    if ((group.mask >> lane & 1) != 0 && group.values[lane][0] != 0) result |= 1u << lane;
  return result;
}

const void* Executor::read_lane(unsigned token, int lane) {
  const Group& group = warps_[static_cast<size_t>(self_ / warp)].groups[token];
  if ((group.mask >> (lane & 31) & 1) == 0)
    fail(cudaErrorIllegalInstruction, "a shuffle reads lane " + std::to_string(lane & 31) + ", which took no part in it or has ended");
  return group.values[lane & 31];
}

void Executor::stuck() {
  std::string text;
  int shown = 0, waiting = 0;
  for (int i = 0; i < count_; ++i) {
    const Thread& t = thread(i);
    if (t.state != Thread::State::at_barrier && t.state != Thread::State::exchanging) continue;
    ++waiting;
    const bool seen = shown > 0 && thread(i - 1).place.file != nullptr && thread(i - 1).place == t.place && thread(i - 1).state == t.state;
    if (seen || shown >= 4) continue;
    ++shown;
    text += (shown > 1 ? "; " : "") + std::string("thread ") + at(coordinates_[static_cast<size_t>(i)]) +
            (t.state == Thread::State::at_barrier ? " in __syncthreads at " : " for lanes of its warp at ") + t.place.text();
  }
  report_ = {cudaErrorLaunchTimeout, "divergent barrier: " + std::to_string(waiting) + " threads of kernel " + kernel_->name + ", block " +
                                         at(coordinates.block) + " wait for each other at different places: " + text};
}

void Executor::fail(cudaError_t error, std::string what) {
  report_ = {error, text(where(self_), ": ", what)};
  std::string().swap(what);  // nothing on this stack is destroyed
  pool_.switch_to(pool_.main());
  __builtin_unreachable();
}

}  // namespace

Report run_kernel(const Kernel& kernel, Order order, uint64_t seed) { return executor().run(kernel, order, seed); }
void fail_kernel(cudaError_t error, std::string what) { executor().fail(error, std::move(what)); }
std::string where() { return executor().where(executor().self()); }
Position position() { return executor().position(); }
bool in_kernel() { return executor().running() && on_fiber_stack(__builtin_frame_address(0)); }
bool on_fiber_stack(const void* address) { return executor().pool().contains(address); }
uint64_t fiber_switches() { return executor().pool().switches(); }

int lane() { return executor().self() % warp; }
void synchronize_block(const char* file, int line) { executor().barrier({file, line}); }
unsigned exchange(unsigned mask, const void* value, size_t bytes, const char* file, int line) {
  return executor().exchange(mask, value, bytes, {file, line});
}
const void* read_lane(unsigned token, int lane) { return executor().read_lane(token, lane); }
void trap(const char* file, int line) { fail_kernel(cudaErrorLaunchFailure, "__trap at " + Place{file, line}.text()); }

}  // namespace cuda_on_host

int __syncthreads_count(int predicate, const char* file, int line) {
  return cuda_on_host::executor().count_votes(predicate != 0, {file, line});
}

unsigned __ballot_sync(unsigned mask, int predicate, const char* file, int line) {
  const unsigned char holds = predicate != 0;
  const unsigned token = cuda_on_host::exchange(mask, &holds, 1, file, line);
  return cuda_on_host::executor().ballot(token);
}
