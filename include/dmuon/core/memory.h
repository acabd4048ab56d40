// Memory with a purpose: every byte belongs to a category, so that a run can say where its memory went and a dry run
// can predict it. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

namespace dmuon {

enum class MemoryCategory : uint8_t {
  parameters,       // full parameters that a unit computes with, including masters that live in them
  gradients,        // full and reduced gradients
  optimizer_state,  // momentum, second moments, separate masters
  activations,      // everything the tape holds and transient results of operations
  communication,    // staging of collectives
  data,             // batches
  workspace,        // scratch of kernels and of the Newton-Schulz engine
  count
};
std::string_view name_of(MemoryCategory category);

struct MemoryStatistics {
  struct Entry {
    int64_t current = 0;
    int64_t peak = 0;  // highest `current` of this category alone
  };
  std::array<Entry, static_cast<size_t>(MemoryCategory::count)> categories{};
  Entry total;  // peak of the sum, not the sum of the peaks

  const Entry& operator[](MemoryCategory category) const { return categories[static_cast<size_t>(category)]; }
};

// A block of memory; freed (or returned to its allocator's cache) when the last handle goes.
class Storage {
 public:
  virtual ~Storage() = default;
  void* data() const { return data_; }  // null in a shape-only pass
  int64_t bytes() const { return bytes_; }
  MemoryCategory category() const { return category_; }

  // Guarded test double: makes the block inaccessible/accessible; calls nest. No-ops otherwise.
  virtual void open() {}
  virtual void close() {}

 protected:
  Storage(void* data, int64_t bytes, MemoryCategory category) : data_(data), bytes_(bytes), category_(category) {}
  void* data_;
  int64_t bytes_;
  MemoryCategory category_;
};
using StorageHandle = std::shared_ptr<Storage>;

class Allocator {
 public:
  virtual ~Allocator() = default;
  // Returns at least `bytes` bytes, aligned to 64, content undefined (test doubles fill it with NaN patterns).
  // `name` appears in the out-of-memory error (DeviceError), together with the category table.
  virtual StorageHandle allocate(int64_t bytes, MemoryCategory category, std::string_view name) = 0;
  virtual MemoryStatistics statistics() const = 0;
  virtual void reset_peak() = 0;
};

// Host memory. Freed blocks are cached by size class (at most 12.5 % larger than asked), because a training step
// allocates the same sizes again and fresh pages cost more than the kernels that fill them. The cache is trimmed, oldest
// first, so that blocks in use and cached blocks together stay below the highest use so far plus `cache_fraction` of it.
struct HostAllocatorOptions {
  bool guarded = false;  // every block on its own pages, inaccessible unless opened
  bool poison = false;   // fill new blocks with 0xff bytes (NaN in every floating type)
  double cache_fraction = 0.10;
};
std::shared_ptr<Allocator> make_host_allocator(const HostAllocatorOptions& options = {});

// Counts bytes and hands out null pointers: the allocator of a shape-only pass.
std::shared_ptr<Allocator> make_counting_allocator();

}  // namespace dmuon
