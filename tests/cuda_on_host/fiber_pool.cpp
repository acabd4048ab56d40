#include "cuda_on_host/fiber_pool.h"

#include <pthread.h>
#include <sys/mman.h>

#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#elif defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace cuda_on_host {
namespace {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

constexpr size_t page = 4096;
constexpr size_t stack_bytes = 256 * 1024;  // reserved, a page used where needed
constexpr size_t slots = 1025;              // a block's threads and one that finds nothing to do

}  // namespace

FiberPool::FiberPool(void (*body)(void*), void* argument) : body_(body), argument_(argument) {
  memory_bytes_ = slots * stack_bytes;
  void* memory = mmap(nullptr, memory_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<unsigned char*>(memory);
#if defined(__SANITIZE_THREAD__)
  main_.sanitizer_fiber = __tsan_get_current_fiber();
#endif
#if defined(__SANITIZE_ADDRESS__)
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    void* lowest = nullptr;
    pthread_attr_getstack(&attributes, &lowest, &main_.stack_bytes);
    main_.stack = static_cast<unsigned char*>(lowest);
    pthread_attr_destroy(&attributes);
  }
#endif
}

FiberPool::~FiberPool() {
  reset();
#if defined(__SANITIZE_THREAD__)
  for (auto& fiber : fibers_) __tsan_destroy_fiber(fiber->sanitizer_fiber);
#endif
  munmap(memory_, memory_bytes_);
}

Fiber* FiberPool::take() {
  if (free_.empty()) {
    if (fibers_.size() == slots) throw std::bad_alloc();
    auto fiber = std::make_unique<Fiber>();
    // The lowest page of each stack stays out of reach, so that a stack that is too small ends the process.
    fiber->stack = memory_ + fibers_.size() * stack_bytes + page;
    fiber->stack_bytes = stack_bytes - page;
    if (mprotect(fiber->stack, fiber->stack_bytes, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
    begin(*fiber);
    free_.push_back(fiber.get());
    fibers_.push_back(std::move(fiber));
  }
  Fiber* fiber = free_.back();
  free_.pop_back();
  return fiber;
}

void FiberPool::begin(Fiber& fiber) {
  // Stacks begin at different offsets in their pages, or all of them would compete for the same lines of the cache.
  const size_t offset = static_cast<size_t>((fiber.stack - memory_) / stack_bytes) % 60 * 64;
  fiber.context = make_fcontext(fiber.stack + fiber.stack_bytes - offset, fiber.stack_bytes - offset, &FiberPool::entry);
#if defined(__SANITIZE_ADDRESS__)
  fiber.fake_stack = nullptr;
  ASAN_UNPOISON_MEMORY_REGION(fiber.stack, fiber.stack_bytes);
#elif defined(__SANITIZE_THREAD__)
  if (fiber.sanitizer_fiber != nullptr) __tsan_destroy_fiber(fiber.sanitizer_fiber);
  fiber.sanitizer_fiber = __tsan_create_fiber(0);
#endif
}

void FiberPool::reset() {
  free_.clear();
  for (auto& fiber : fibers_) {
    begin(*fiber);
    free_.push_back(fiber.get());
  }
}

void FiberPool::jump(Fiber* to) {
  from_ = current_;
  current_ = to;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&from_->fake_stack, to->stack, to->stack_bytes);
#elif defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to->sanitizer_fiber, 0);
#endif
  arrived(jump_fcontext(to->context, this));
}

// On the stack of current_, which from_ has just left.
void FiberPool::arrived(transfer_t transfer) {
  from_->context = transfer.fctx;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(current_->fake_stack, nullptr, nullptr);
#endif
}

void FiberPool::entry(transfer_t transfer) {
  auto* pool = static_cast<FiberPool*>(transfer.data);
  pool->arrived(transfer);
  pool->body_(pool->argument_);
  __builtin_trap();
}

}  // namespace cuda_on_host
