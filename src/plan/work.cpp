#include "plan/work.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "dmuon/core/checked.h"

namespace dmuon {
namespace {

// Costs closer than this are equal: sums in another order must not decide.
constexpr double equal_costs = 1e-12;

// Cost of one batch of 1 .. n matrices, n at most the largest size measured.
std::vector<double> cost_of_sizes(const ShapeCost& measured, int count) {
  std::vector<double> costs{0.0};
  size_t next = 0;
  for (int b = 1; b <= std::min(count, measured.batches.back().batch); ++b) {
    while (measured.batches[next].batch < b) ++next;
    const BatchCost& above = measured.batches[next];
    if (above.batch == b) {
      costs.push_back(above.seconds);
      continue;
    }
    const BatchCost& below = measured.batches[next - 1];  // sizes start at 1
    const double part = static_cast<double>(b - below.batch) / (above.batch - below.batch);
    costs.push_back(below.seconds + part * (above.seconds - below.seconds));
  }
  return costs;
}

// Seconds per unit of PlanTensor::cost, the median over what was measured: for shapes that were not.
double seconds_per_cost(const std::vector<PlanTensor>& tensors, const CostModel& model) {
  std::vector<double> ratios;
  for (const PlanTensor& tensor : tensors) {
    if (!tensor.whole || !in_plan(tensor) || !(tensor.cost > 0.0)) continue;
    if (const ShapeCost* found = model.find(tensor.rule, tensor.shape)) ratios.push_back(found->batches[0].seconds / tensor.cost);
  }
  if (ratios.empty()) return 1.0;
  std::nth_element(ratios.begin(), ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2), ratios.end());
  return ratios[ratios.size() / 2];
}

}  // namespace

std::vector<int> BatchTable::batches(int k) const {
  std::vector<int> sizes_of_k;
  for (; k > 0; k -= last[static_cast<size_t>(k)]) sizes_of_k.push_back(last[static_cast<size_t>(k)]);
  std::sort(sizes_of_k.rbegin(), sizes_of_k.rend());
  return sizes_of_k;
}

BatchTable make_batch_table(int count, const ShapeCost* measured, double single) {
  BatchTable table;
  table.cost.push_back(0.0);
  table.last.push_back(0);
  if (measured == nullptr) {  // batches change nothing: one call
    for (int k = 1; k <= count; ++k) {
      table.cost.push_back(k * single);
      table.last.push_back(k);
    }
    table.sizes.push_back(1);
    return table;
  }
  const std::vector<double> costs = cost_of_sizes(*measured, count);
  for (int k = 1; k <= count; ++k) {
    double best = std::numeric_limits<double>::infinity();
    int size = 0;
    for (int b = std::min(k, static_cast<int>(costs.size()) - 1); b >= 1; --b) {
      const double cost = costs[static_cast<size_t>(b)] + table.cost[static_cast<size_t>(k - b)];
      if (cost < best * (1.0 - equal_costs)) best = cost, size = b;
    }
    table.cost.push_back(best);
    table.last.push_back(size);
    if (size == k) {
      double split = std::numeric_limits<double>::infinity();
      for (int a = 1; a < k; ++a) split = std::min(split, table.cost[static_cast<size_t>(a)] + table.cost[static_cast<size_t>(k - a)]);
      if (best < split * (1.0 - equal_costs)) table.sizes.push_back(k);
    }
  }
  return table;
}

double Work::least_work() const {
  double sum = 0.0;
  for (const WorkGroup& group : groups) sum += group.table.cost.back();
  return sum;
}

double Work::lower_bound() const {
  double largest = 0.0;  // measured costs need not ascend: some slot pays for one or more of the group
  for (const WorkGroup& group : groups)
    largest = std::max(largest, *std::min_element(group.table.cost.begin() + 1, group.table.cost.end()));
  return std::max(least_work() / slots, largest);
}

Work make_work(const std::vector<PlanTensor>& tensors, const PlanOptions& options) {
  Work work;
  work.slots = options.slots;
  work.slot_bytes = options.memory_limit_bytes > 0 ? options.memory_limit_bytes : std::numeric_limits<int64_t>::max();
  std::vector<size_t> kinds;  // first tensor of each class
  for (size_t i = 0; i < tensors.size(); ++i) {
    const PlanTensor& tensor = tensors[i];
    if (!tensor.whole || !in_plan(tensor)) continue;
    const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](size_t first) {
      return tensors[first].rule == tensor.rule && tensors[first].shape == tensor.shape &&
             tensors[first].state_bytes_per_element == tensor.state_bytes_per_element && tensors[first].cost == tensor.cost;
    });
    const int index = static_cast<int>(kind - kinds.begin());
    if (kind == kinds.end()) kinds.push_back(i);
    const int window = tensor.unit / options.window_units;
    auto group =
        std::find_if(work.groups.begin(), work.groups.end(), [&](const WorkGroup& g) { return g.kind == index && g.window == window; });
    if (group == work.groups.end()) {
      const int64_t padded = round_up(tensor.shape.elements(), tensor_alignment);
      work.groups.push_back({index, window, {}, {}, tensor.shape.elements(), padded * held_bytes_per_element(tensor)});
      group = work.groups.end() - 1;
    }
    group->tensors.push_back(static_cast<int>(i));
  }
  const double scale = options.cost_model != nullptr ? seconds_per_cost(tensors, *options.cost_model) : 1.0;
  for (WorkGroup& group : work.groups) {
    const PlanTensor& first = tensors[static_cast<size_t>(group.tensors[0])];
    const ShapeCost* measured = options.cost_model != nullptr ? options.cost_model->find(first.rule, first.shape) : nullptr;
    group.table = make_batch_table(group.count(), measured, first.cost * scale);
  }
  return work;
}

double load_of(const Work& work, const Counts& counts, int slot) {
  double load = 0.0;
  for (size_t g = 0; g < counts.size(); ++g) {
    const int count = counts[g][static_cast<size_t>(slot)];
    if (count > 0) load += work.groups[g].table.cost[static_cast<size_t>(count)];
  }
  return load;
}

std::vector<double> loads_of(const Work& work, const Counts& counts) {
  std::vector<double> loads;
  for (int slot = 0; slot < work.slots; ++slot) loads.push_back(load_of(work, counts, slot));
  return loads;
}

double makespan_of(const Work& work, const Counts& counts) {
  const std::vector<double> loads = loads_of(work, counts);
  return *std::max_element(loads.begin(), loads.end());
}

std::vector<int64_t> bytes_of(const Work& work, const Counts& counts) {
  std::vector<int64_t> bytes(static_cast<size_t>(work.slots), 0);
  for (size_t g = 0; g < counts.size(); ++g)
    for (size_t slot = 0; slot < bytes.size(); ++slot) bytes[slot] += counts[g][slot] * work.groups[g].bytes;
  return bytes;
}

Counts counts_of(const Work& work, const std::vector<int>& owners) {
  Counts counts;
  for (const WorkGroup& group : work.groups) {
    counts.emplace_back(static_cast<size_t>(work.slots), 0);
    for (int tensor : group.tensors) ++counts.back()[static_cast<size_t>(owners[static_cast<size_t>(tensor)])];
  }
  return counts;
}

}  // namespace dmuon
