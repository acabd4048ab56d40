// What every allocator of this project shares: who holds how many bytes for what, the classes of block sizes, and the error
// that says where the memory went.
#pragma once

#include <mutex>
#include <string>
#include <string_view>

#include "dmuon/core/memory.h"

namespace dmuon {

// Bytes in use by category. Thread-safe.
class MemoryAccounting {
 public:
  void add(int64_t bytes, MemoryCategory category);
  void remove(int64_t bytes, MemoryCategory category);
  MemoryStatistics get() const;
  void reset_peak();

 private:
  mutable std::mutex mutex_;
  MemoryStatistics statistics_;
};

// The size of the block that serves a request of `bytes`: at most 12.5 % more beyond 512 bytes, a multiple of 64.
int64_t block_size_class(int64_t bytes);

// The peaks of all categories and of their sum, as a table for people.
std::string describe_memory(const MemoryStatistics& statistics);
// The category with the highest peak.
MemoryCategory largest_category(const MemoryStatistics& statistics);
// What makes a category smaller, as keys of the configuration and in words: "a smaller training.micro_batch_size, ...".
std::string memory_remedies(MemoryCategory category);

// DeviceError: "out of memory: <bytes> for "<name>"", `details` (a line, may be empty), the table of categories, the remedies for the
// category that would hold most, this request for `category` included.
[[noreturn]] void throw_out_of_memory(int64_t bytes, MemoryCategory category, std::string_view name, std::string_view details,
                                      const MemoryStatistics& statistics);

// Of allocators that can count what they did not hand out; see count_external_memory.
class CountsExternalMemory {
 public:
  virtual ~CountsExternalMemory() = default;
  virtual std::shared_ptr<const void> count_external(int64_t bytes, MemoryCategory category) = 0;
};
// Counts now, and until the handle goes; `owner` keeps the accounting alive.
std::shared_ptr<const void> count_while_held(std::shared_ptr<void> owner, MemoryAccounting& accounting, int64_t bytes,
                                             MemoryCategory category);

}  // namespace dmuon
