#include "plan/spread.h"

#include <algorithm>
#include <numeric>

namespace dmuon {

int spread_slot(int64_t index, int nodes, int rails) {
  int64_t shift = 0;
  while (std::gcd(int64_t{rails} + shift, int64_t{nodes}) != 1) ++shift;
  const int64_t rail = index % rails, node = (index + shift * (index / rails)) % nodes;
  return static_cast<int>(rail * nodes + node);
}

void spread_windows(const Work& work, Counts& counts) {
  // Elements of each window on each slot.
  int windows = 0, kinds = 0;
  for (const WorkGroup& group : work.groups) {
    windows = std::max(windows, group.window + 1);
    kinds = std::max(kinds, group.kind + 1);
  }
  const auto slots = static_cast<size_t>(work.slots);
  std::vector<std::vector<int64_t>> elements(static_cast<size_t>(windows), std::vector<int64_t>(slots, 0));
  std::vector<std::vector<size_t>> of_kind(static_cast<size_t>(kinds));
  for (size_t g = 0; g < work.groups.size(); ++g) of_kind[static_cast<size_t>(work.groups[g].kind)].push_back(g);
  std::stable_sort(of_kind.begin(), of_kind.end(), [&](const auto& a, const auto& b) {
    return work.groups[a[0]].elements > work.groups[b[0]].elements;  // the largest have the choice
  });
  for (const std::vector<size_t>& kind : of_kind) {
    // What every slot holds of this class, in batches by size; every group breaks up into the same sizes as before.
    int largest = 0;
    for (size_t g : kind) largest = std::max(largest, work.groups[g].count());
    std::vector<std::vector<int>> tokens(slots, std::vector<int>(static_cast<size_t>(largest) + 1, 0));
    std::vector<std::vector<int>> sizes_of_group(kind.size());
    for (size_t k = 0; k < kind.size(); ++k) {
      const BatchTable& table = work.groups[kind[k]].table;
      for (size_t s = 0; s < slots; ++s) {
        const int count = counts[kind[k]][s];
        const std::vector<int> sizes = table.sizes.size() == 1 ? std::vector<int>(static_cast<size_t>(count), 1) : table.batches(count);
        for (int size : sizes) {
          sizes_of_group[k].push_back(size);
          ++tokens[s][static_cast<size_t>(size)];
        }
      }
      std::sort(sizes_of_group[k].rbegin(), sizes_of_group[k].rend());
    }
    for (size_t k = 0; k < kind.size(); ++k) {
      const WorkGroup& group = work.groups[kind[k]];
      std::vector<int64_t>& window = elements[static_cast<size_t>(group.window)];
      std::fill(counts[kind[k]].begin(), counts[kind[k]].end(), 0);
      for (int size : sizes_of_group[k]) {
        size_t best = slots;
        for (size_t s = 0; s < slots; ++s)
          if (tokens[s][static_cast<size_t>(size)] > 0 && (best == slots || window[s] < window[best])) best = s;
        --tokens[best][static_cast<size_t>(size)];
        counts[kind[k]][best] += size;
        window[best] += size * group.elements;
      }
    }
  }
}

std::vector<int> spread_owners(const Work& work, const Counts& counts, const std::vector<PlanTensor>& tensors, int units, int replicas) {
  const auto slots = static_cast<size_t>(work.slots);
  std::vector<int> owners(tensors.size(), -1);
  std::vector<std::vector<int64_t>> in_unit(static_cast<size_t>(units), std::vector<int64_t>(slots, 0));
  std::vector<size_t> order(work.groups.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return work.groups[a].elements > work.groups[b].elements; });
  for (size_t g : order) {
    const WorkGroup& group = work.groups[g];
    std::vector<int> left = counts[g];
    for (int tensor : group.tensors) {
      std::vector<int64_t>& unit = in_unit[static_cast<size_t>(tensors[static_cast<size_t>(tensor)].unit)];
      size_t best = slots;
      for (size_t s = 0; s < slots; ++s)
        if (left[s] > 0 && (best == slots || unit[s] < unit[best])) best = s;
      --left[best];
      unit[best] += group.elements;
      owners[static_cast<size_t>(tensor)] = spread_slot(static_cast<int64_t>(best), replicas, work.slots / replicas);
    }
  }
  return owners;
}

}  // namespace dmuon
