// One mixed-integer program of milp.h, built from a piece of work, and counts from its solution.
#pragma once

#include <optional>

#include "dmuon/plan/milp_solver.h"
#include "plan/work.h"

namespace dmuon {

class Program {
 public:
  // `start` gives a feasible point and bounds the loads; without one, `work` must bound its bytes or be feasible anyway.
  Program(const Work& work, const std::optional<Counts>& start);

  static int64_t variables(const Work& work);

  const MilpProblem& problem() const { return problem_; }
  // The same program for the least total work at this makespan (in the work's costs), started from `counts`.
  MilpProblem least_work(double makespan, const Counts& counts) const;
  // Of a solution; nothing where values are missing, out of their bounds, not integers, or batches that slots take were
  // not given by any window. What it returns still has to be checked against sizes of groups and the memory bound.
  std::optional<Counts> counts(const std::vector<double>& values) const;
  double cost(double value) const { return value * unit_; }  // of the program's objective

 private:
  struct Kind {
    std::vector<size_t> groups;
    std::vector<int> sizes;           // useful batch sizes
    std::vector<double> costs;        // of a batch of each size
    std::vector<std::vector<int>> x;  // [size][slot]
    std::vector<std::vector<int>> y;  // [group][size]; empty where there is one group or one size
    int matrices = 0;
    int64_t bytes = 0;
  };

  void add_kind(Kind& kind, double largest_load);
  void add_slot_rows();
  std::vector<double> point(const Counts& counts) const;

  const Work& work_;
  std::vector<Kind> kinds_;
  MilpProblem problem_;
  int makespan_ = 0;   // variable
  double unit_ = 1.0;  // cost that is 1 in the program
};

}  // namespace dmuon
