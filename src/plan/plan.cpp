#include "dmuon/plan/plan.h"

#include <algorithm>
#include <tuple>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "plan/layout.h"

namespace dmuon {
namespace {

// Longest processing time first (Graham 1969). Equal loads go to the slot with the fewest elements of the tensor's
// unit, so that a unit's matrices spread and its publish stays balanced; then to the lowest slot.
std::vector<int> greedy_owners(const std::vector<PlanTensor>& tensors, int units, int slots) {
  std::vector<size_t> order;
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].whole) order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return tensors[a].cost > tensors[b].cost; });

  std::vector<int> owners(tensors.size(), -1);
  std::vector<double> loads(static_cast<size_t>(slots), 0.0);
  std::vector<std::vector<int64_t>> unit_elements(static_cast<size_t>(units), std::vector<int64_t>(static_cast<size_t>(slots), 0));
  for (size_t index : order) {
    auto& in_unit = unit_elements[static_cast<size_t>(tensors[index].unit)];
    size_t best = 0;
    for (size_t s = 1; s < loads.size(); ++s)
      if (loads[s] < loads[best] || (loads[s] == loads[best] && in_unit[s] < in_unit[best])) best = s;
    owners[index] = static_cast<int>(best);
    loads[best] += tensors[index].cost;
    in_unit[best] += tensors[index].shape.elements();
  }
  return owners;
}

void check(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options) {
  if (options.slots < 1) throw ConfigError(text("a plan needs at least one slot, got ", options.slots));
  if (options.cut_elements < tensor_alignment || options.cut_elements % tensor_alignment != 0)
    throw ConfigError(text("distribution.cut_elements must be a positive multiple of ", tensor_alignment, ", got ", options.cut_elements));
  if (options.window_units < 1) throw ConfigError(text("distribution.window_units must be at least 1, got ", options.window_units));
  if (options.memory_limit_bytes < 0)
    throw ConfigError(text("distribution.memory_limit_bytes must not be negative, got ", options.memory_limit_bytes));
  if (options.replicas < 1 || options.slots % options.replicas != 0 ||
      (options.shards != 0 && int64_t{options.shards} * options.replicas != options.slots))
    throw ConfigError(text("a grid of ", options.replicas, " replicas and ",
                           options.shards != 0 ? options.shards : options.slots / std::max(options.replicas, 1), " shards does not have ",
                           options.slots, " slots"));
  for (const PlanTensor& tensor : tensors)
    if (tensor.unit < 0 || tensor.unit >= units) throw ShapeError(text("tensor ", tensor.name, " names unit ", tensor.unit, " of ", units));
}

// One batch per rule, shape, slot and window.
std::vector<PlanBatch> equal_shapes(const std::vector<PlanTensor>& tensors, const Plan& plan) {
  std::vector<PlanBatch> batches;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].whole) continue;
    const int slot = plan.owners[i], window = plan.window_of_unit[static_cast<size_t>(tensors[i].unit)];
    const auto same = [&](const PlanBatch& batch) {
      const PlanTensor& first = tensors[static_cast<size_t>(batch.tensors[0])];
      return batch.slot == slot && batch.window == window && first.shape == tensors[i].shape && first.rule == tensors[i].rule;
    };
    auto found = std::find_if(batches.begin(), batches.end(), same);
    if (found == batches.end()) found = batches.insert(found, {slot, window, {}, 0.0});
    found->tensors.push_back(static_cast<int>(i));
    found->cost += tensors[i].cost;
  }
  std::stable_sort(batches.begin(), batches.end(), [](const PlanBatch& a, const PlanBatch& b) {
    return std::tie(a.window, a.slot, a.tensors[0]) < std::tie(b.window, b.slot, b.tensors[0]);
  });
  return batches;
}

}  // namespace

const char* name_of(PlanStrategy strategy) {
  switch (strategy) {
    case PlanStrategy::greedy:
      return "greedy";
    case PlanStrategy::round_robin:
      return "round_robin";
    case PlanStrategy::rank0:
      return "rank0";
    case PlanStrategy::milp:
      return "milp";
  }
  return "";
}

PlanStrategy plan_strategy_from_name(std::string_view name) {
  for (PlanStrategy strategy : {PlanStrategy::greedy, PlanStrategy::milp, PlanStrategy::round_robin, PlanStrategy::rank0})
    if (name == name_of(strategy)) return strategy;
  throw ConfigError(text("distribution.planner: \"", name, "\" is not one of greedy, milp, round_robin, rank0"));
}

Plan make_plan_with_owners(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options, const std::vector<int>& owners) {
  check(tensors, units, options);
  Plan plan;
  plan.slots = options.slots;
  plan.replicas = options.replicas;
  plan.shards = options.slots / options.replicas;
  plan.cut_elements = options.cut_elements;
  plan.strategy = name_of(options.strategy);
  plan.owners = owners;
  plan.loads.assign(static_cast<size_t>(options.slots), 0.0);
  double sum = 0.0, largest = 0.0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].whole) continue;
    if (owners[i] < 0 || owners[i] >= options.slots)
      throw ConfigError(text("tensor ", tensors[i].name, " has owner ", owners[i], " of ", options.slots, " slots"));
    plan.loads[static_cast<size_t>(owners[i])] += tensors[i].cost;
    sum += tensors[i].cost;
    largest = std::max(largest, tensors[i].cost);
  }
  plan.lower_bound = std::max(sum / options.slots, largest);
  plan.search.method = plan.strategy;
  plan.search.lower_bound = plan.lower_bound;
  for (int unit = 0; unit < units; ++unit) plan.window_of_unit.push_back(unit / options.window_units);
  plan.batches = equal_shapes(tensors, plan);
  for (int unit = 0; unit < units; ++unit) plan.units.push_back(make_unit_layout(tensors, unit, options, plan.owners));
  for (int slot = 0; slot < options.slots; ++slot)
    for (const Piece& piece : plan.pieces(slot))
      if (piece.first == 0) plan.owners[static_cast<size_t>(piece.tensor)] = slot;
  return plan;
}

Plan make_plan(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options) {
  check(tensors, units, options);
  std::vector<int> owners(tensors.size(), 0);
  if (options.strategy == PlanStrategy::greedy || options.strategy == PlanStrategy::milp) {
    owners = greedy_owners(tensors, units, options.slots);
  } else if (options.strategy == PlanStrategy::round_robin) {
    int next = 0;
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].whole) owners[i] = next++ % options.slots;
  }
  return make_plan_with_owners(tensors, units, options, owners);
}

std::vector<Piece> Plan::pieces(int slot) const {
  std::vector<Piece> pieces;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    const UnitLayout& layout = units[unit];
    const int64_t begin = layout.cuts[static_cast<size_t>(slot)], end = layout.cuts[static_cast<size_t>(slot) + 1];
    for (const UnitLayout::Entry& entry : layout.entries) {
      const int64_t first = std::max(begin, entry.offset), last = std::min(end, entry.offset + entry.elements);
      if (first < last) pieces.push_back({entry.tensor, static_cast<int>(unit), first - entry.offset, last - first, first});
    }
  }
  return pieces;
}

double Plan::makespan() const { return loads.empty() ? 0.0 : *std::max_element(loads.begin(), loads.end()); }

}  // namespace dmuon
