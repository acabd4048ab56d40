// Stacks and switches of fibers (Boost.Context), told to the address and thread sanitizers where these are on.
#pragma once

#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace cuda_on_host {

class FiberPool;

struct Fiber {
  boost::context::detail::fcontext_t context = nullptr;
  unsigned char* stack = nullptr;  // lowest address
  size_t stack_bytes = 0;
  int thread = -1;                  // of the block, which it waits with
  void* fake_stack = nullptr;       // of the address sanitizer
  void* sanitizer_fiber = nullptr;  // of the thread sanitizer
};

// Fibers that all run one function and never leave it. Not thread-safe: one pool, one thread.
class FiberPool {
 public:
  // `body(argument)` must not return.
  FiberPool(void (*body)(void*), void* argument);
  ~FiberPool();
  FiberPool(const FiberPool&) = delete;
  FiberPool& operator=(const FiberPool&) = delete;

  // A fiber that waits for nothing.
  Fiber* take();
  void give_back(Fiber* fiber) { free_.push_back(fiber); }
  Fiber* current() const { return current_; }
  Fiber* main() { return &main_; }
  // Goes on in `to` and returns when something switches back to the caller.
  void switch_to(Fiber* to) {
    ++switches_;
    jump(to);
  }
  // Drops what every fiber was doing. From the main fiber.
  void reset();
  uint64_t switches() const { return switches_; }
  bool contains(const void* address) const {
    return static_cast<size_t>(static_cast<const unsigned char*>(address) - memory_) < memory_bytes_;
  }

 private:
  void jump(Fiber* to);
  void begin(Fiber& fiber);
  static void entry(boost::context::detail::transfer_t from);
  void arrived(boost::context::detail::transfer_t from);

  void (*body_)(void*);
  void* argument_;
  unsigned char* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;
  Fiber main_;
  Fiber* current_ = &main_;
  Fiber* from_ = &main_;  // the fiber left last
  uint64_t switches_ = 0;
};

}  // namespace cuda_on_host
