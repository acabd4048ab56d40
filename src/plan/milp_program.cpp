#include "plan/milp_program.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace dmuon {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
// Relative room around the makespan: the solver works to 1e-7, and stops on an assertion where bounds nearly meet.
constexpr double margin = 1e-5;
constexpr double integer_tolerance = 1e-4;  // of a solver's answer

// Sizes of batches of `table` that are worth a variable, for a class of which one slot may hold `count`.
std::vector<int> useful_sizes(const BatchTable& table, int count) {
  std::vector<int> sizes;
  for (int size : table.sizes)
    if (size <= count) sizes.push_back(size);
  return sizes;
}

// k matrices in batches of useful sizes at the least cost.
std::vector<int> useful_batches(const BatchTable& table, int k) {
  std::vector<int> batches;
  while (k > 0) {
    int size = 1;
    for (int b : table.sizes)
      if (b <= k &&
          table.cost[static_cast<size_t>(b)] + table.cost[static_cast<size_t>(k - b)] <= table.cost[static_cast<size_t>(k)] * (1.0 + 1e-9))
        size = b;
    batches.push_back(size);
    k -= size;
  }
  return batches;
}

// The widest table of a class serves all its groups: tables of one class agree as far as both go.
const BatchTable& widest_table(const Work& work, const std::vector<size_t>& groups) {
  return work
      .groups[*std::max_element(groups.begin(), groups.end(),
                                [&](size_t a, size_t b) { return work.groups[a].table.cost.size() < work.groups[b].table.cost.size(); })]
      .table;
}

std::vector<std::vector<size_t>> groups_by_kind(const Work& work) {
  std::vector<std::vector<size_t>> kinds;
  std::vector<int> names;
  for (size_t g = 0; g < work.groups.size(); ++g) {
    const auto found = std::find(names.begin(), names.end(), work.groups[g].kind);
    if (found == names.end()) {
      names.push_back(work.groups[g].kind);
      kinds.push_back({g});
    } else {
      kinds[static_cast<size_t>(found - names.begin())].push_back(g);
    }
  }
  return kinds;
}

int largest_group(const Work& work, const std::vector<size_t>& groups) {
  int largest = 0;
  for (size_t g : groups) largest = std::max(largest, work.groups[g].count());
  return largest;
}

}  // namespace

int64_t Program::variables(const Work& work) {
  int64_t count = 1;
  for (const std::vector<size_t>& groups : groups_by_kind(work)) {
    const auto sizes = static_cast<int64_t>(useful_sizes(widest_table(work, groups), largest_group(work, groups)).size());
    count += sizes * work.slots;
    if (sizes > 1 && groups.size() > 1) count += sizes * static_cast<int64_t>(groups.size());
  }
  return count;
}

Program::Program(const Work& work, const std::optional<Counts>& start)
    : work_(work), unit_(work.lower_bound() > 0.0 ? work.lower_bound() : 1.0) {
  const double largest_load = start ? makespan_of(work, *start) : infinite;
  makespan_ = problem_.add_variable({work.lower_bound() / unit_ * (1.0 - margin), largest_load / unit_ * (1.0 + margin), 1.0, false});
  for (std::vector<size_t>& groups : groups_by_kind(work)) {
    Kind kind;
    kind.groups = std::move(groups);
    add_kind(kind, largest_load);
    kinds_.push_back(std::move(kind));
  }
  add_slot_rows();
  if (start) problem_.start = point(*start);
}

void Program::add_kind(Kind& kind, double largest_load) {
  const BatchTable& table = widest_table(work_, kind.groups);
  kind.sizes = useful_sizes(table, largest_group(work_, kind.groups));
  kind.bytes = work_.groups[kind.groups[0]].bytes;
  for (size_t g : kind.groups) kind.matrices += work_.groups[g].count();
  for (int size : kind.sizes) {
    kind.costs.push_back(table.cost[static_cast<size_t>(size)]);
    double most = kind.matrices / size;
    if (kind.costs.back() > 0.0) most = std::min(most, std::floor(largest_load / kind.costs.back() * (1.0 + margin)));
    kind.x.emplace_back();
    for (int slot = 0; slot < work_.slots; ++slot) kind.x.back().push_back(problem_.add_variable({0.0, most, 0.0, true}));
  }
  const auto matrices_row = [&](double count) { return MilpRow{{}, count, count}; };
  if (kind.groups.size() == 1 || kind.sizes.size() == 1) {
    MilpRow all = matrices_row(kind.matrices);
    for (size_t b = 0; b < kind.sizes.size(); ++b)
      for (int x : kind.x[b]) all.terms.push_back({x, kind.sizes[b]});
    problem_.rows.push_back(std::move(all));
    return;
  }
  std::vector<MilpRow> batches(kind.sizes.size());  // slots take what the windows give
  for (size_t b = 0; b < kind.sizes.size(); ++b)
    for (int x : kind.x[b]) batches[b].terms.push_back({x, 1.0});
  for (size_t g : kind.groups) {
    MilpRow window = matrices_row(work_.groups[g].count());
    kind.y.emplace_back();
    for (size_t b = 0; b < kind.sizes.size(); ++b) {
      const int y = problem_.add_variable({0.0, static_cast<double>(work_.groups[g].count() / kind.sizes[b]), 0.0, true});
      kind.y.back().push_back(y);
      window.terms.push_back({y, kind.sizes[b]});
      batches[b].terms.push_back({y, -1.0});
    }
    problem_.rows.push_back(std::move(window));
  }
  for (MilpRow& row : batches) problem_.rows.push_back(std::move(row));
}

void Program::add_slot_rows() {
  const bool bounded = work_.slot_bytes < std::numeric_limits<int64_t>::max();
  std::vector<std::vector<std::pair<int, double>>> loads;
  for (int slot = 0; slot < work_.slots; ++slot) {
    std::vector<std::pair<int, double>> load;
    MilpRow memory{{}, -infinite, 1.0};
    for (const Kind& kind : kinds_)
      for (size_t b = 0; b < kind.sizes.size(); ++b) {
        const int x = kind.x[b][static_cast<size_t>(slot)];
        load.push_back({x, kind.costs[b] / unit_});
        memory.terms.push_back({x, static_cast<double>(kind.sizes[b] * kind.bytes) / static_cast<double>(work_.slot_bytes)});
      }
    MilpRow most{load, -infinite, 0.0};
    most.terms.push_back({makespan_, -1.0});
    problem_.rows.push_back(std::move(most));
    if (bounded) problem_.rows.push_back(std::move(memory));
    loads.push_back(std::move(load));
  }
  for (size_t slot = 1; slot < loads.size(); ++slot) {  // equal slots: the fuller one first
    MilpRow order{loads[slot - 1], 0.0, infinite};
    for (const auto& [x, cost] : loads[slot]) order.terms.push_back({x, -cost});
    problem_.rows.push_back(std::move(order));
  }
}

std::vector<double> Program::point(const Counts& counts) const {
  const std::vector<double> loads = loads_of(work_, counts);
  std::vector<size_t> order(loads.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return loads[a] > loads[b]; });
  std::vector<double> values(problem_.variables.size(), 0.0);
  values[static_cast<size_t>(makespan_)] = loads[order[0]] / unit_;
  for (const Kind& kind : kinds_)
    for (size_t k = 0; k < kind.groups.size(); ++k)
      for (size_t place = 0; place < order.size(); ++place)
        for (int size : useful_batches(work_.groups[kind.groups[k]].table, counts[kind.groups[k]][order[place]])) {
          const auto b = static_cast<size_t>(std::find(kind.sizes.begin(), kind.sizes.end(), size) - kind.sizes.begin());
          values[static_cast<size_t>(kind.x[b][place])] += 1.0;
          if (!kind.y.empty()) values[static_cast<size_t>(kind.y[k][b])] += 1.0;
        }
  return values;
}

MilpProblem Program::least_work(double makespan, const Counts& counts) const {
  MilpProblem problem = problem_;
  MilpVariable& most = problem.variables[static_cast<size_t>(makespan_)];
  most.objective = 0.0;
  most.upper = makespan / unit_ * (1.0 + margin);
  for (const Kind& kind : kinds_)
    for (size_t b = 0; b < kind.sizes.size(); ++b)
      for (int x : kind.x[b]) problem.variables[static_cast<size_t>(x)].objective = kind.costs[b] / unit_;
  problem.start = point(counts);
  return problem;
}

std::optional<Counts> Program::counts(const std::vector<double>& values) const {
  if (values.size() != problem_.variables.size()) return std::nullopt;
  for (size_t i = 0; i < values.size(); ++i) {
    const MilpVariable& variable = problem_.variables[i];
    if (!variable.integer) continue;
    if (!(values[i] >= variable.lower - integer_tolerance && values[i] <= variable.upper + integer_tolerance)) return std::nullopt;
    if (std::abs(values[i] - std::round(values[i])) > integer_tolerance) return std::nullopt;
  }
  Counts counts(work_.groups.size(), std::vector<int>(static_cast<size_t>(work_.slots), 0));
  const auto value = [&](int variable) { return static_cast<int>(std::lround(values[static_cast<size_t>(variable)])); };
  for (const Kind& kind : kinds_)
    for (size_t b = 0; b < kind.sizes.size(); ++b) {
      std::vector<size_t> given;  // one entry per batch of this size: its group
      for (size_t k = 0; k < kind.groups.size(); ++k) {
        const size_t g = kind.groups[k];
        // One size is 1: every matrix is a batch. One group: the slots decide.
        const int batches = !kind.y.empty() ? value(kind.y[k][b]) : kind.groups.size() == 1 ? kind.matrices : work_.groups[g].count();
        given.insert(given.end(), static_cast<size_t>(batches), g);
      }
      auto next = given.begin();
      for (size_t slot = 0; slot < static_cast<size_t>(work_.slots); ++slot)
        for (int i = value(kind.x[b][slot]); i > 0; --i) {
          if (next == given.end()) return std::nullopt;
          counts[*next++][slot] += kind.sizes[b];
        }
    }
  return counts;
}

}  // namespace dmuon
