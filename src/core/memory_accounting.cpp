#include "core/memory_accounting.h"

#include <algorithm>
#include <limits>
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

std::string describe_memory(const MemoryStatistics& statistics) {
  std::vector<std::vector<std::string>> table{{"category", "peak"}};
  for (size_t i = 0; i < statistics.categories.size(); ++i)
    table.push_back({std::string(name_of(static_cast<MemoryCategory>(i))), format_bytes(statistics.categories[i].peak)});
  table.push_back({"all of them at once", format_bytes(statistics.total.peak)});
  return format_table(table);
}

MemoryCategory largest_category(const MemoryStatistics& statistics) {
  const auto largest = std::max_element(statistics.categories.begin(), statistics.categories.end(),
                                        [](const auto& a, const auto& b) { return a.peak < b.peak; });
  return static_cast<MemoryCategory>(largest - statistics.categories.begin());
}

std::string memory_remedies(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::parameters:
      return "distribution.stage = 3, which holds whole parameters of a few units only, with more ranks on more hosts; or a smaller model";
    case MemoryCategory::gradients:
      return "distribution.stage = 2 or 3, which keep a rank's share of the gradients only, with more ranks on more hosts; or a smaller "
             "model";
    case MemoryCategory::optimizer_state:
      return "more ranks on more hosts, which share optimizer state and masters (distribution.method = owner), a rule with less state, or "
             "a "
             "smaller model";
    case MemoryCategory::activations:
      return "a smaller training.micro_batch_size (and evaluation.batch_size), training.recompute = true, or a shorter "
             "model.context_length";
    case MemoryCategory::communication:
      return "a smaller distribution.look_ahead, or fewer ranks on a host";
    case MemoryCategory::data:
      return "a smaller training.micro_batch_size (and evaluation.batch_size)";
    case MemoryCategory::workspace:
      return "a smaller distribution.window_units, whose matrices are updated together, or more ranks on more hosts";
    case MemoryCategory::count:
      break;
  }
  return "a smaller model";
}

void throw_out_of_memory(int64_t bytes, MemoryCategory category, std::string_view name, std::string_view details,
                         const MemoryStatistics& statistics) {
  std::vector<std::vector<std::string>> table{{"category", "current", "peak"}};
  MemoryStatistics with_request;
  for (size_t i = 0; i < statistics.categories.size(); ++i) {
    table.push_back({std::string(name_of(static_cast<MemoryCategory>(i))), format_bytes(statistics.categories[i].current),
                     format_bytes(statistics.categories[i].peak)});
    with_request.categories[i].peak = statistics.categories[i].current;
  }
  auto& asked = with_request.categories[static_cast<size_t>(category)].peak;
  asked = bytes > std::numeric_limits<int64_t>::max() - asked ? std::numeric_limits<int64_t>::max() : asked + bytes;
  const MemoryCategory largest = largest_category(with_request);
  throw DeviceError(text("out of memory: ", format_bytes(bytes), " for \"", name, "\" (", name_of(category), ")\n", details,
                         details.empty() ? "" : "\n", format_table(table), "remedy, most being ", name_of(largest), ": ",
                         memory_remedies(largest)));
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
