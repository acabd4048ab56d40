#include "dmuon/core/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/memory_accounting.h"
#include "dmuon/core/checked.h"

extern "C" {
// The address sanitizer's; null in a program without it.
[[gnu::weak]] void __asan_poison_memory_region(const volatile void* address, size_t size);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void* address, size_t size);
}

namespace dmuon {

namespace {

constexpr int64_t huge_page = int64_t{2} << 20;

// Large blocks are whole huge pages, others whole cache lines.
int64_t alignment_of(int64_t size) { return size >= huge_page ? huge_page : 64; }
int64_t allocated_bytes(int64_t size) { return round_up(size, alignment_of(size)); }

// Under the address sanitizer, of a block of the class `size` only the first `bytes` may be touched from now on.
void allow_only(void* data, int64_t bytes, int64_t size) {
  if (__asan_poison_memory_region == nullptr || __asan_unpoison_memory_region == nullptr) return;
  __asan_unpoison_memory_region(data, static_cast<size_t>(bytes));
  __asan_poison_memory_region(static_cast<char*>(data) + bytes, static_cast<size_t>(allocated_bytes(size) - bytes));
}

// Gives a block back to the system.
void release(void* data, int64_t size) {
  allow_only(data, allocated_bytes(size), size);
  std::free(data);
}

// Cached blocks of the plain host allocator. Lives as long as any block, so that blocks may outlive the allocator.
class BlockCache {
 public:
  explicit BlockCache(double fraction) : fraction_(fraction) {}
  ~BlockCache() {
    for (auto& block : recent_) release(block.data, block.size);
  }

  void* take(int64_t size) {
    std::lock_guard lock(mutex_);
    auto found = by_size_.find(size);
    if (found == by_size_.end()) return nullptr;
    auto position = found->second;
    void* data = position->data;
    cached_ -= size;
    by_size_.erase(found);
    recent_.erase(position);
    return data;
  }

  void give(void* data, int64_t size, const MemoryStatistics::Entry& in_use) {
    std::lock_guard lock(mutex_);
    allow_only(data, 0, size);
    recent_.push_front({data, size});
    by_size_.emplace(size, recent_.begin());
    cached_ += size;
    trim(in_use);
  }

  // Makes room for a fresh block of `size` bytes.
  void make_room(int64_t size, MemoryStatistics::Entry in_use) {
    std::lock_guard lock(mutex_);
    in_use.current += size;
    trim(in_use);
  }

  void clear() {
    std::lock_guard lock(mutex_);
    while (!recent_.empty()) drop_oldest();
  }

 private:
  struct Block {
    void* data;
    int64_t size;
  };
  // What was in use at the peak may stay: the next step asks for it again. Blocks in use and cached together stay below
  // the peak plus the fraction.
  void trim(const MemoryStatistics::Entry& in_use) {
    highest_ = std::max(highest_, in_use.peak);  // reset_peak() is for reports and must not empty the cache
    const auto limit = highest_ + std::max(static_cast<int64_t>(fraction_ * static_cast<double>(highest_)), int64_t{32} << 20);
    while (cached_ > 0 && in_use.current + cached_ > limit) drop_oldest();
  }
  void drop_oldest() {
    const Block block = recent_.back();
    auto [first, last] = by_size_.equal_range(block.size);
    for (; first != last; ++first)
      if (first->second->data == block.data) {
        by_size_.erase(first);
        break;
      }
    recent_.pop_back();
    cached_ -= block.size;
    release(block.data, block.size);
  }

  std::mutex mutex_;
  double fraction_;
  int64_t cached_ = 0;
  int64_t highest_ = 0;
  std::list<Block> recent_;
  std::multimap<int64_t, std::list<Block>::iterator> by_size_;
};

struct HostState {
  explicit HostState(const HostAllocatorOptions& o) : options(o), cache(o.cache_fraction) {}
  HostAllocatorOptions options;
  MemoryAccounting accounting;
  BlockCache cache;
};

class HostStorage final : public Storage {
 public:
  HostStorage(std::shared_ptr<HostState> state, void* data, int64_t bytes, int64_t block, MemoryCategory category)
      : Storage(data, bytes, category), state_(std::move(state)), block_(block) {
    state_->accounting.add(bytes_, category_);
  }
  ~HostStorage() override {
    state_->accounting.remove(bytes_, category_);
    state_->cache.give(data_, block_, state_->accounting.get().total);
  }

 private:
  std::shared_ptr<HostState> state_;
  int64_t block_;
};

// The block ends at a page end, or as near to it as its alignment allows. What its pages hold beside it is filled with NaNs
// that kernels do not make, and proven to be intact whenever the block closes.
class GuardedStorage final : public Storage {
 public:
  GuardedStorage(std::shared_ptr<HostState> state, char* mapping, int64_t usable, char* data, int64_t bytes, MemoryCategory category,
                 std::string_view name)
      : Storage(data, bytes, category), state_(std::move(state)), mapping_(mapping), usable_(usable), name_(name) {
    for_neighbours([](unsigned char* at) { *at = neighbour(at); });
    protect(PROT_NONE);
    state_->accounting.add(bytes_, category_);
  }
  ~GuardedStorage() override {
    state_->accounting.remove(bytes_, category_);
    munmap(mapping_, static_cast<size_t>(usable_ + sysconf(_SC_PAGESIZE)));
  }
  void open() override {
    std::lock_guard lock(mutex_);
    if (depth_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() override {
    std::lock_guard lock(mutex_);
    if (--depth_ > 0) return;
    for_neighbours([this](const unsigned char* at) {
      if (*at != neighbour(at)) die(at);
    });
    protect(PROT_NONE);
  }

 private:
  // The bytes of 0x7fff: NaN in every floating type, and not the poison.
  static unsigned char neighbour(const unsigned char* at) { return reinterpret_cast<uintptr_t>(at) % 2 == 0 ? 0xff : 0x7f; }

  template <class Body>
  void for_neighbours(const Body& body) const {
    auto* const first = reinterpret_cast<unsigned char*>(mapping_);
    auto* const data = static_cast<unsigned char*>(data_);
    for (unsigned char* at = first; at < data; ++at) body(at);
    for (unsigned char* at = data + bytes_; at < first + usable_; ++at) body(at);
  }
  [[noreturn]] void die(const unsigned char* at) const {
    std::fprintf(stderr, "a kernel wrote beside \"%s\": at byte %td of %lld\n", name_.c_str(), at - static_cast<unsigned char*>(data_),
                 static_cast<long long>(bytes_));
    std::abort();
  }
  void protect(int access) { mprotect(mapping_, static_cast<size_t>(usable_), access); }

  std::shared_ptr<HostState> state_;
  char* mapping_;
  int64_t usable_;
  std::string name_;
  std::mutex mutex_;
  int depth_ = 0;
};

class HostAllocator final : public Allocator, public CountsExternalMemory {
 public:
  explicit HostAllocator(const HostAllocatorOptions& options) : state_(std::make_shared<HostState>(options)) {}

  StorageHandle allocate(int64_t bytes, MemoryCategory category, std::string_view name) override {
    constexpr int64_t address_space = int64_t{1} << 47;  // sizes beyond it must not reach the rounding below
    if (bytes < 0 || bytes > address_space) throw_out_of_memory(bytes, category, name, "", statistics());
    return state_->options.guarded ? allocate_guarded(bytes, category, name) : allocate_plain(bytes, category, name);
  }
  std::shared_ptr<const void> count_external(int64_t bytes, MemoryCategory category) override {
    return count_while_held(state_, state_->accounting, bytes, category);
  }
  MemoryStatistics statistics() const override { return state_->accounting.get(); }
  void reset_peak() override { state_->accounting.reset_peak(); }

 private:
  StorageHandle allocate_plain(int64_t bytes, MemoryCategory category, std::string_view name) {
    const int64_t size = block_size_class(bytes);
    void* data = state_->cache.take(size);
    if (data == nullptr) {
      state_->cache.make_room(size, state_->accounting.get().total);
      for (int attempt = 0; attempt < 2 && data == nullptr; ++attempt) {
        if (attempt == 1) state_->cache.clear();
        data = std::aligned_alloc(static_cast<size_t>(alignment_of(size)), static_cast<size_t>(allocated_bytes(size)));
      }
      if (data == nullptr) throw_out_of_memory(bytes, category, name, "", statistics());
      if (size >= huge_page) madvise(data, static_cast<size_t>(size), MADV_HUGEPAGE);  // advice only: failure is harmless
    }
    allow_only(data, bytes, size);
    if (state_->options.poison) std::memset(data, 0xff, static_cast<size_t>(bytes));
    return std::make_shared<HostStorage>(state_, data, bytes, size, category);
  }

  StorageHandle allocate_guarded(int64_t bytes, MemoryCategory category, std::string_view name) {
    const int64_t page = sysconf(_SC_PAGESIZE);
    const int64_t usable = round_up(std::max<int64_t>(bytes, 1), page);
    void* pages = mmap(nullptr, static_cast<size_t>(usable + page), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) throw_out_of_memory(bytes, category, name, "", statistics());
    char* const mapping = static_cast<char*>(pages);
    mprotect(mapping + usable, static_cast<size_t>(page), PROT_NONE);
    char* const data = mapping + usable - round_up(bytes, 64);
    std::memset(data, 0xff, static_cast<size_t>(bytes));
    return std::make_shared<GuardedStorage>(state_, mapping, usable, data, bytes, category, name);
  }

  std::shared_ptr<HostState> state_;
};

class CountingAllocator final : public Allocator, public CountsExternalMemory {
 public:
  StorageHandle allocate(int64_t bytes, MemoryCategory category, std::string_view) override {
    return std::make_shared<Counted>(accounting_, bytes, category);
  }
  std::shared_ptr<const void> count_external(int64_t bytes, MemoryCategory category) override {
    return count_while_held(accounting_, *accounting_, bytes, category);
  }
  MemoryStatistics statistics() const override { return accounting_->get(); }
  void reset_peak() override { accounting_->reset_peak(); }

 private:
  class Counted final : public Storage {
   public:
    Counted(std::shared_ptr<MemoryAccounting> accounting, int64_t bytes, MemoryCategory category)
        : Storage(nullptr, bytes, category), accounting_(std::move(accounting)) {
      accounting_->add(bytes_, category_);
    }
    ~Counted() override { accounting_->remove(bytes_, category_); }

   private:
    std::shared_ptr<MemoryAccounting> accounting_;
  };
  std::shared_ptr<MemoryAccounting> accounting_ = std::make_shared<MemoryAccounting>();
};

}  // namespace

std::shared_ptr<Allocator> make_host_allocator(const HostAllocatorOptions& options) { return std::make_shared<HostAllocator>(options); }
std::shared_ptr<Allocator> make_counting_allocator() { return std::make_shared<CountingAllocator>(); }

}  // namespace dmuon
