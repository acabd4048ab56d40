#include "core/memory_accounting.h"

#include <algorithm>
#include <string>
#include <vector>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/external_memory.h"
#include "dmuon/core/text.h"

namespace dmuon {

std::string_view name_of(MemoryCategory category) {
  static constexpr std::string_view names[] = {"parameters",    "gradients", "optimizer_state", "activations",
                                               "communication", "data",      "workspace"};
  return names[static_cast<size_t>(category)];
}

void MemoryAccounting::add(int64_t bytes, MemoryCategory category) {
  const std::lock_guard lock(mutex_);
  auto& entry = statistics_.categories[static_cast<size_t>(category)];
  entry.current += bytes;
  entry.peak = std::max(entry.peak, entry.current);
  statistics_.total.current += bytes;
  statistics_.total.peak = std::max(statistics_.total.peak, statistics_.total.current);
}

void MemoryAccounting::remove(int64_t bytes, MemoryCategory category) {
  const std::lock_guard lock(mutex_);
  statistics_.categories[static_cast<size_t>(category)].current -= bytes;
  statistics_.total.current -= bytes;
}

MemoryStatistics MemoryAccounting::get() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

void MemoryAccounting::reset_peak() {
  const std::lock_guard lock(mutex_);
  for (auto& entry : statistics_.categories) entry.peak = entry.current;
  statistics_.total.peak = statistics_.total.current;
}

int64_t block_size_class(int64_t bytes) {
  const int64_t wanted = std::max<int64_t>(round_up(bytes, 64), 64);
  int64_t power = 64;
  while (power * 2 <= wanted) power *= 2;
  return round_up(wanted, std::max<int64_t>(power / 8, 64));
}

void throw_out_of_memory(int64_t bytes, std::string_view name, std::string_view details, const MemoryStatistics& statistics) {
  std::vector<std::vector<std::string>> table{{"category", "current", "peak"}};
  for (size_t i = 0; i < statistics.categories.size(); ++i)
    table.push_back({std::string(name_of(static_cast<MemoryCategory>(i))), format_bytes(statistics.categories[i].current),
                     format_bytes(statistics.categories[i].peak)});
  throw DeviceError(text("out of memory: ", format_bytes(bytes), " for \"", name, "\"\n", details, details.empty() ? "" : "\n",
                         format_table(table), "remedy: a smaller training.micro_batch_size, training.recompute = true, or more ranks"));
}

std::shared_ptr<const void> count_while_held(std::shared_ptr<void> owner, MemoryAccounting& accounting, int64_t bytes,
                                             MemoryCategory category) {
  accounting.add(bytes, category);
  return {&accounting, [owner = std::move(owner), &accounting, bytes, category](const void*) { accounting.remove(bytes, category); }};
}

std::shared_ptr<const void> count_external_memory(Allocator& allocator, int64_t bytes, MemoryCategory category) {
  auto* counts = dynamic_cast<CountsExternalMemory*>(&allocator);
  return counts ? counts->count_external(bytes, category) : nullptr;
}

}  // namespace dmuon
