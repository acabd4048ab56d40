#include "plan/milp.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "plan/greedy.h"
#include "plan/milp_program.h"

namespace dmuon {
namespace {

constexpr double whole_gap = 1e-5;      // of the whole program
constexpr double smallest_gain = 1e-7;  // relative
constexpr double longest_part = 2.0;    // seconds for a program over a few slots, and at most
constexpr double part_of_limit = 0.25;  // of all the time
constexpr double shortest = 0.1;        // seconds worth a program
constexpr int most_failures = 24;       // neighbourhoods in a row that gained nothing

class Clock {
 public:
  explicit Clock(double limit) : limit_(limit) {}
  double spent() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  double left() const { return limit_ - spent(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double limit_;
};

// Every count as it should be: a solver's answer is checked, not believed.
bool valid(const Work& work, const Counts& counts) {
  for (size_t g = 0; g < counts.size(); ++g) {
    if (std::accumulate(counts[g].begin(), counts[g].end(), 0) != work.groups[g].count()) return false;
    if (*std::min_element(counts[g].begin(), counts[g].end()) < 0) return false;
  }
  const std::vector<int64_t> bytes = bytes_of(work, counts);
  return *std::max_element(bytes.begin(), bytes.end()) <= work.slot_bytes;
}

double total_of(const Work& work, const Counts& counts) {
  const std::vector<double> loads = loads_of(work, counts);
  return std::accumulate(loads.begin(), loads.end(), 0.0);
}

// The part of the work that these slots hold, as work of its own.
struct Part {
  Work work;
  std::vector<size_t> groups;  // of the whole
  Counts counts;
};

Part part_of(const Work& work, const Counts& counts, const std::vector<int>& slots) {
  Part part;
  part.work.slots = static_cast<int>(slots.size());
  part.work.slot_bytes = work.slot_bytes;
  for (size_t g = 0; g < work.groups.size(); ++g) {
    std::vector<int> here;
    for (int slot : slots) here.push_back(counts[g][static_cast<size_t>(slot)]);
    const int count = std::accumulate(here.begin(), here.end(), 0);
    if (count == 0) continue;
    WorkGroup group = work.groups[g];
    group.tensors.resize(static_cast<size_t>(count));
    group.table.cost.resize(static_cast<size_t>(count) + 1);
    group.table.last.resize(static_cast<size_t>(count) + 1);
    std::erase_if(group.table.sizes, [&](int size) { return size > count; });
    part.work.groups.push_back(std::move(group));
    part.groups.push_back(g);
    part.counts.push_back(std::move(here));
  }
  return part;
}

class Search {
 public:
  Search(const Work& work, MilpSolver& solver, double seconds)
      : work_(work), solver_(solver), clock_(seconds), limit_(seconds), part_seconds_(std::min(longest_part, part_of_limit * seconds)) {
    result_.bound = work.lower_bound();
  }

  MilpResult run(const std::optional<Counts>& start) {
    try {
      result_.counts = start;
      const bool whole = Program::variables(work_) <= most_whole_variables;
      if (start && !(whole && small())) by_parts(*start);
      if (whole && !done() && clock_.left() > shortest) solve_whole();
      if (!whole && !start) result_.failure = text("its program has more than ", most_whole_variables, " variables and no start");
      if (whole && result_.counts) lower_total();
      if (result_.variables == 0 && result_.failure.empty() && !done())
        result_.failure = text("a limit of ", limit_, " s leaves no time for a program");
    } catch (const Error& error) {
      result_.failure = error.what();
    }
    if (result_.counts) result_.bound = std::min(result_.bound, makespan_of(work_, *result_.counts));  // rounding, or a solver's error
    result_.seconds = clock_.spent();
    return std::move(result_);
  }

 private:
  // Solved at once: neighbourhoods would not save time.
  bool small() const { return Program::variables(work_) <= 300; }
  bool done() const { return result_.counts && makespan_of(work_, *result_.counts) <= result_.bound * (1.0 + close_enough); }

  MilpSolution solve(const MilpProblem& problem, double seconds, double gap) {
    result_.variables = std::max(result_.variables, static_cast<int64_t>(problem.variables.size()));
    MilpSolution solution = solver_.solve(problem, {std::min(seconds, clock_.left()), gap});
    if (solution.message.empty() || clock_.left() < shortest) return solution;
    return solver_.solve(problem, {std::min(seconds, clock_.left()), gap, true});  // it failed: once more, carefully
  }

  void solve_whole() {
    const Program program(work_, result_.counts);
    const MilpSolution solution = solve(program.problem(), clock_.left(), whole_gap);
    if (solution.status == MilpStatus::infeasible) {  // no bound of such an answer holds
      result_.infeasible = !result_.counts;
      result_.failure = result_.infeasible ? text(solver_.name(), " proves that no owners meet the memory bound")
                                           : text(solver_.name(), " finds no owners although greedy's meet every row");
      return;
    }
    if (std::isfinite(solution.bound)) result_.bound = std::max(result_.bound, program.cost(solution.bound) * (1.0 - smallest_gain));
    if (solution.values.empty()) {
      result_.failure = !solution.message.empty() ? solution.message : text("no solution in ", format_number(clock_.spent(), 1), " s");
      return;
    }
    take(program.counts(solution.values));
  }

  void take(std::optional<Counts> counts) {
    if (!counts || !valid(work_, *counts)) {
      result_.failure = text(solver_.name(), " gave owners that break the program's rows");
      return;
    }
    if (!result_.counts || makespan_of(work_, *counts) < makespan_of(work_, *result_.counts)) result_.counts = std::move(counts);
  }

  // The fullest slot together with others: first with the emptiest, then with all in turn, more of them after failures.
  void by_parts(const Counts& start) {
    Counts counts = start;
    int failures = 0, turn = 0;
    while (failures < most_failures && clock_.left() > std::max(shortest, 0.5 * part_seconds_)) {
      const std::vector<double> loads = loads_of(work_, counts);
      std::vector<int> order(loads.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&](int a, int b) { return loads[static_cast<size_t>(a)] > loads[static_cast<size_t>(b)]; });
      result_.counts = counts;
      if (done()) return;
      const std::vector<int> slots = neighbourhood(order, failures, turn++);
      Part part = part_of(work_, counts, slots);
      if (Program::variables(part.work) > most_variables) {
        result_.failure = text("a program over ", slots.size(), " slots has more than ", most_variables, " variables");
        return;
      }
      const double before = makespan_of(part.work, part.counts);
      if (part.work.lower_bound() < before * (1.0 - close_enough / 2) && improve_part(part) &&
          makespan_of(part.work, part.counts) < before * (1.0 - smallest_gain)) {
        for (size_t i = 0; i < part.groups.size(); ++i)
          for (size_t s = 0; s < slots.size(); ++s) counts[part.groups[i]][static_cast<size_t>(slots[s])] = part.counts[i][s];
        improve(work_, counts);
        failures = 0;
      } else {
        ++failures;
      }
    }
    result_.counts = counts;
  }

  std::vector<int> neighbourhood(const std::vector<int>& order, int failures, int turn) const {
    const size_t size = std::min(order.size(), static_cast<size_t>(2 + std::min(failures, 12) / 4));
    std::vector<int> slots{order[0]};
    if (failures == 0) {
      for (size_t i = 1; i < size; ++i) slots.push_back(order[order.size() - i]);
    } else {
      const size_t others = order.size() - 1;
      for (size_t i = 0; i + 1 < size; ++i) {
        const int slot = order[1 + (static_cast<size_t>(turn) * 7 + i * (others / size + 1)) % others];
        if (std::find(slots.begin(), slots.end(), slot) == slots.end()) slots.push_back(slot);
      }
    }
    return slots;
  }

  bool improve_part(Part& part) {
    const Program program(part.work, part.counts);
    const MilpSolution solution = solve(program.problem(), part_seconds_, close_enough / 2);
    if (solution.values.empty()) return false;
    std::optional<Counts> counts = program.counts(solution.values);
    if (!counts || !valid(part.work, *counts)) return false;
    part.counts = std::move(*counts);
    return true;
  }

  // Second objective: the same makespan with less work in total.
  void lower_total() {
    const double makespan = makespan_of(work_, *result_.counts), total = total_of(work_, *result_.counts);
    if (total <= work_.least_work() * (1.0 + close_enough) || clock_.left() < shortest) return;
    const Program program(work_, result_.counts);
    const MilpSolution solution = solve(program.least_work(makespan, *result_.counts), clock_.left(), close_enough);
    if (solution.values.empty()) return;
    std::optional<Counts> counts = program.counts(solution.values);
    if (!counts || !valid(work_, *counts)) return;
    if (makespan_of(work_, *counts) <= makespan * (1.0 + smallest_gain) && total_of(work_, *counts) < total)
      result_.counts = std::move(counts);
  }

  const Work& work_;
  MilpSolver& solver_;
  Clock clock_;
  double limit_, part_seconds_;
  MilpResult result_;
};

}  // namespace

MilpResult milp_counts(const Work& work, const std::optional<Counts>& start, MilpSolver& solver, double seconds) {
  return Search(work, solver, seconds).run(start);
}

}  // namespace dmuon
