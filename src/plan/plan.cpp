#include "dmuon/plan/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "plan/greedy.h"
#include "plan/layout.h"
#include "plan/milp.h"
#include "plan/spread.h"
#include "plan/work.h"

namespace dmuon {
namespace {

void check(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options) {
  if (options.slots < 1) throw ConfigError(text("a plan needs at least one slot, got ", options.slots));
  if (options.cut_elements < tensor_alignment || options.cut_elements % tensor_alignment != 0)
    throw ConfigError(text("distribution.cut_elements must be a positive multiple of ", tensor_alignment, ", got ", options.cut_elements));
  if (options.window_units < 1) throw ConfigError(text("distribution.window_units must be at least 1, got ", options.window_units));
  if (options.memory_limit_bytes < 0)
    throw ConfigError(text("distribution.memory_limit_bytes must not be negative, got ", options.memory_limit_bytes));
  if (!(options.time_limit_seconds > 0.0))
    throw ConfigError(text("distribution.planner_time_limit_seconds must be positive, got ", options.time_limit_seconds));
  if (options.replicas < 1 || options.slots % options.replicas != 0 ||
      (options.shards != 0 && int64_t{options.shards} * options.replicas != options.slots))
    throw ConfigError(text("a grid of ", options.replicas, " replicas and ",
                           options.shards != 0 ? options.shards : options.slots / std::max(options.replicas, 1), " shards does not have ",
                           options.slots, " slots"));
  for (const PlanTensor& tensor : tensors)
    if (tensor.unit < -1 || tensor.unit >= units)
      throw ShapeError(text("tensor ", tensor.name, " names unit ", tensor.unit, " of ", units));
  int64_t total = 0;
  for (const PlanTensor& tensor : tensors) {
    if (!in_plan(tensor)) continue;
    const auto padded = checked_add(tensor.shape.elements(), tensor_alignment);
    const auto bytes = padded ? checked_multiply(*padded, held_bytes_per_element(tensor)) : std::nullopt;
    const auto sum = bytes ? checked_add(total, *bytes) : std::nullopt;
    if (!sum || tensor.state_bytes_per_element < 0)
      throw ShapeError(text("tensor ", tensor.name, " ", tensor.shape.to_string(), " with ", tensor.state_bytes_per_element,
                            " bytes of state per element: the inventory's bytes do not fit 63 bits"));
    if (!std::isfinite(tensor.cost) || tensor.cost < 0.0) throw ConfigError(text("tensor ", tensor.name, " has cost ", tensor.cost));
    total = *sum;
  }
}

// The cheapest batches of what every slot holds of every group; a group's tensors fill them in ascending order.
std::vector<PlanBatch> batches_of(const Work& work, const std::vector<int>& owners) {
  const Counts counts = counts_of(work, owners);
  std::vector<PlanBatch> batches;
  for (size_t g = 0; g < work.groups.size(); ++g) {
    const WorkGroup& group = work.groups[g];
    std::vector<std::vector<int>> held(static_cast<size_t>(work.slots));
    for (int tensor : group.tensors) held[static_cast<size_t>(owners[static_cast<size_t>(tensor)])].push_back(tensor);
    for (size_t slot = 0; slot < held.size(); ++slot) {
      auto next = held[slot].begin();
      for (int size : group.table.batches(counts[g][slot])) {
        batches.push_back({static_cast<int>(slot), group.window, {next, next + size}, group.table.batch_cost(size)});
        next += size;
      }
    }
  }
  std::sort(batches.begin(), batches.end(), [](const PlanBatch& a, const PlanBatch& b) {
    return std::tie(a.window, a.slot, a.tensors[0]) < std::tie(b.window, b.slot, b.tensors[0]);
  });
  return batches;
}

int64_t padded_bytes(const PlanTensor& tensor) {
  return round_up(tensor.shape.elements(), tensor_alignment) * held_bytes_per_element(tensor);
}

// What no assignment can meet.
void check_bound(const std::vector<PlanTensor>& tensors, const PlanOptions& options) {
  const int64_t limit = options.memory_limit_bytes;
  if (limit == 0) return;
  int64_t total = 0;
  for (const PlanTensor& tensor : tensors) {
    if (!in_plan(tensor)) continue;
    const int64_t bytes = padded_bytes(tensor);
    total += bytes;
    if ((tensor.whole || tensor.shape.elements() <= options.cut_elements) && bytes > limit)
      throw ConfigError(text("distribution.memory_limit_bytes is ", limit, ", but tensor ", tensor.name, " ", tensor.shape.to_string(),
                             ", which one rank holds whole, takes ", bytes, " bytes of master, gradient and optimizer state"));
  }
  const int64_t share = divide_up(total, options.slots);
  if (share > limit)
    throw ConfigError(text("distribution.memory_limit_bytes is ", limit, ", but masters, gradients and optimizer state take ", total,
                           " bytes: ", share, " on each of ", options.slots, " ranks; a limit above ", share, " or at least ",
                           divide_up(total, limit), " ranks would fit"));
}

// No owners were found within the bound although none of the simple reasons holds. Says what is known: only a solver proves
// that there are none. `programs`: what planner milp came to, null with other planners.
[[noreturn]] void refuse_bound(const Work& work, const PlanOptions& options, const MilpResult* programs) {
  Work free = work;
  free.slot_bytes = std::numeric_limits<int64_t>::max();
  const std::vector<int64_t> bytes = bytes_of(free, *counts_by_bytes(free));
  const std::string found =
      programs == nullptr ? "greedy found no owners within it, which does not prove that there are none: planner milp may find them"
      : programs->infeasible
          ? text("the matrices, which stay whole, do not fit ", options.slots, " ranks within it (", programs->failure, ")")
          : text("neither greedy nor integer programs found owners within it (", programs->failure.empty() ? "no time" : programs->failure,
                 "), which does not prove that there are none");
  throw ConfigError(text("distribution.memory_limit_bytes is ", options.memory_limit_bytes, ", but ", found,
                         "; matrices that are placed by their bytes alone need ", *std::max_element(bytes.begin(), bytes.end()),
                         " bytes on the fullest rank"));
}

// Every slot's bytes against the bound, padding included.
void check_memory(const Plan& plan, const std::vector<PlanTensor>& tensors, int64_t limit) {
  if (limit == 0) return;
  const std::vector<int64_t> bytes = plan.bytes(tensors);
  const auto fullest = std::max_element(bytes.begin(), bytes.end());
  if (*fullest > limit)
    throw ConfigError(text("distribution.memory_limit_bytes is ", limit, ", but with planner ", plan.strategy, " slot ",
                           fullest - bytes.begin(), " of ", plan.slots, " holds ", *fullest,
                           " bytes of masters, gradients and optimizer state: this plan needs ", *fullest,
                           "; raise the limit or use more ranks"));
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

namespace {

// Everything that follows from the owners of whole tensors.
Plan complete_plan(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options, const Work& work, std::vector<int> owners,
                   PlanSearch search) {
  Plan plan;
  plan.slots = options.slots;
  plan.replicas = options.replicas;
  plan.shards = options.slots / options.replicas;
  plan.cut_elements = options.cut_elements;
  plan.strategy = name_of(options.strategy);
  for (int unit = 0; unit < units; ++unit) plan.window_of_unit.push_back(unit / options.window_units);
  plan.batches = batches_of(work, owners);
  plan.loads = loads_of(work, counts_of(work, owners));
  plan.search = std::move(search);
  plan.search.measured = options.cost_model != nullptr && !options.cost_model->empty();
  plan.search.lower_bound = std::max(plan.search.lower_bound, work.lower_bound());
  plan.lower_bound = plan.search.lower_bound;
  plan.units = make_layouts(tensors, units, options, owners);
  plan.owners = std::move(owners);
  for (int slot = 0; slot < options.slots; ++slot)
    for (const Piece& piece : plan.pieces(slot))
      if (piece.first == 0) plan.owners[static_cast<size_t>(piece.tensor)] = slot;
  check_memory(plan, tensors, options.memory_limit_bytes);
  return plan;
}

}  // namespace

Plan make_plan_with_owners(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options, const std::vector<int>& owners) {
  check(tensors, units, options);
  std::vector<int> whole(owners);
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].whole || !in_plan(tensors[i]))
      whole[i] = -1;
    else if (owners[i] < 0 || owners[i] >= options.slots)
      throw ConfigError(text("tensor ", tensors[i].name, " has owner ", owners[i], " of ", options.slots, " slots"));
  }
  PlanSearch search;
  search.method = name_of(options.strategy);
  return complete_plan(tensors, units, options, make_work(tensors, options), std::move(whole), std::move(search));
}

namespace {

// Greedy's owners, or better ones from integer programs; says in `search` which, and why.
Counts search_counts(const Work& work, const PlanOptions& options, PlanSearch& search) {
  std::optional<Counts> greedy = greedy_counts(work);
  if (greedy) search.greedy_makespan = makespan_of(work, *greedy);
  search.method = name_of(PlanStrategy::greedy);
  if (options.strategy != PlanStrategy::milp) {
    if (!greedy) refuse_bound(work, options, nullptr);
    return std::move(*greedy);
  }
  std::unique_ptr<MilpSolver> own = options.solver == nullptr ? make_cbc_solver() : nullptr;
  MilpSolver& solver = own ? *own : *options.solver;
  MilpResult result = milp_counts(work, greedy, solver, options.time_limit_seconds);
  search.lower_bound = result.bound;
  search.variables = result.variables;
  search.seconds = result.seconds;
  if (result.counts) search.milp_makespan = makespan_of(work, *result.counts);
  if (!result.counts && !greedy) refuse_bound(work, options, &result);
  if (result.counts && (!greedy || *result.counts != *greedy)) {
    search.method = name_of(PlanStrategy::milp);
    return std::move(*result.counts);
  }
  // Owners that nothing can beat, or hardly, are what was asked for.
  if (search.greedy_makespan > result.bound * (1.0 + close_enough))
    search.fallback =
        !result.failure.empty() ? result.failure : text("programs found nothing better in ", format_number(result.seconds, 2), " s");
  return std::move(*greedy);
}

}  // namespace

Plan make_plan(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options) {
  check(tensors, units, options);
  const Work work = make_work(tensors, options);
  check_bound(tensors, options);
  PlanSearch search;
  search.method = name_of(options.strategy);
  std::vector<int> owners(tensors.size(), -1);
  if (options.strategy == PlanStrategy::round_robin || options.strategy == PlanStrategy::rank0) {
    int next = 0;
    for (size_t i = 0; i < tensors.size(); ++i)
      if (tensors[i].whole && in_plan(tensors[i])) owners[i] = options.strategy == PlanStrategy::rank0 ? 0 : next++ % options.slots;
  } else {
    Counts counts = search_counts(work, options, search);
    spread_windows(work, counts);
    owners = spread_owners(work, counts, tensors, units, options.replicas);
  }
  return complete_plan(tensors, units, options, work, std::move(owners), std::move(search));
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

std::vector<int64_t> Plan::bytes(const std::vector<PlanTensor>& tensors) const {
  std::vector<int64_t> held;
  for (int slot = 0; slot < slots; ++slot) {
    int64_t sum = 0;
    for (const Piece& piece : pieces(slot))
      sum += round_up(piece.count, tensor_alignment) * held_bytes_per_element(tensors[static_cast<size_t>(piece.tensor)]);
    held.push_back(sum);
  }
  return held;
}

double Plan::makespan() const { return loads.empty() ? 0.0 : *std::max_element(loads.begin(), loads.end()); }

}  // namespace dmuon
