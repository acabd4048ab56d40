#include "plan/greedy.h"

#include <algorithm>
#include <numeric>

namespace dmuon {
namespace {

struct Chunk {
  int group = 0;
  int size = 1;      // matrices
  double key = 0.0;  // placed in descending order of this
};

// Places chunks in descending order where the slot's new load (`by_bytes`: its bytes) is least. Empty when the memory
// bound leaves no slot.
std::optional<Counts> place(const Work& work, std::vector<Chunk> chunks, bool by_bytes) {
  const auto slots = static_cast<size_t>(work.slots);
  std::stable_sort(chunks.begin(), chunks.end(), [](const Chunk& a, const Chunk& b) { return a.key > b.key; });
  Counts counts(work.groups.size(), std::vector<int>(slots, 0));
  std::vector<double> loads(slots, 0.0);
  std::vector<int64_t> bytes(slots, 0);
  std::vector<std::vector<int64_t>> in_window;  // elements of a window on a slot: ties spread a window's matrices
  for (const Chunk& chunk : chunks) {
    const WorkGroup& group = work.groups[static_cast<size_t>(chunk.group)];
    if (static_cast<int>(in_window.size()) <= group.window)
      in_window.resize(static_cast<size_t>(group.window) + 1, std::vector<int64_t>(slots, 0));
    std::vector<int64_t>& window = in_window[static_cast<size_t>(group.window)];
    std::vector<int>& on = counts[static_cast<size_t>(chunk.group)];
    const int64_t size = chunk.size * group.bytes;
    size_t best = slots;
    double best_load = 0.0;
    for (size_t s = 0; s < slots; ++s) {
      if (bytes[s] > work.slot_bytes - size) continue;
      const auto& cost = group.table.cost;
      const double load = by_bytes ? static_cast<double>(bytes[s])
                                   : loads[s] - cost[static_cast<size_t>(on[s])] + cost[static_cast<size_t>(on[s] + chunk.size)];
      if (best == slots || load < best_load || (load == best_load && window[s] < window[best])) best = s, best_load = load;
    }
    if (best == slots) return std::nullopt;
    on[best] += chunk.size;
    loads[best] = best_load;
    bytes[best] += size;
    window[best] += chunk.size * group.elements;
  }
  return counts;
}

std::vector<Chunk> chunks_of(const Work& work, bool batched, bool by_bytes) {
  std::vector<Chunk> chunks;
  for (size_t g = 0; g < work.groups.size(); ++g) {
    const WorkGroup& group = work.groups[g];
    const std::vector<int> sizes = batched ? group.table.batches(group.count()) : std::vector<int>(static_cast<size_t>(group.count()), 1);
    for (int size : sizes)
      chunks.push_back(
          {static_cast<int>(g), size, by_bytes ? static_cast<double>(group.bytes) : group.table.cost[static_cast<size_t>(size)]});
  }
  return chunks;
}

}  // namespace

std::optional<Counts> greedy_counts(const Work& work) {
  std::optional<Counts> best;
  double best_makespan = 0.0;
  const auto consider = [&](std::optional<Counts> counts) {
    if (!counts) return;
    improve(work, *counts);
    const double makespan = makespan_of(work, *counts);
    if (best && makespan >= best_makespan) return;
    best = std::move(counts);
    best_makespan = makespan;
  };
  consider(place(work, chunks_of(work, false, false), false));
  consider(place(work, chunks_of(work, true, false), false));
  if (!best) consider(counts_by_bytes(work));
  return best;
}

std::optional<Counts> counts_by_bytes(const Work& work) { return place(work, chunks_of(work, false, true), true); }

double makespan_without_batches(const Work& work) {
  std::vector<double> costs;
  for (const WorkGroup& group : work.groups) costs.insert(costs.end(), group.tensors.size(), group.table.cost[1]);
  std::sort(costs.rbegin(), costs.rend());
  std::vector<double> loads(static_cast<size_t>(work.slots), 0.0);
  for (double cost : costs) *std::min_element(loads.begin(), loads.end()) += cost;
  return *std::max_element(loads.begin(), loads.end());
}

}  // namespace dmuon
