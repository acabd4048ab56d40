// Owners by mixed-integer programs (design section 7): how many batches of each size of each class every slot takes.
//
//   minimise L   subject to
//     sum over slots of x[class, size, slot] = sum over the class's windows of y[window, size]
//     sum over sizes of size * y[window, size] = matrices of the class in the window
//     sum of cost * x <= L  and  sum of bytes * x <= bound  for every slot
//     load of slot r >= load of slot r + 1
//
// Batches of one class and size cost the same in every window, so slots and windows meet only in the sums: the program
// grows with slots + windows instead of their product. A second program lowers the total work at that makespan.
#pragma once

#include <optional>
#include <string>

#include "dmuon/plan/milp_solver.h"
#include "plan/work.h"

namespace dmuon {

struct MilpResult {
  std::optional<Counts> counts;  // the best found by programs, also when greedy is as good; empty: none
  double bound = 0.0;            // proved lower bound of the makespan
  int64_t variables = 0;         // of the largest program
  double seconds = 0.0;
  bool infeasible = false;  // proved by the solver: no owners meet the memory bound
  std::string failure;      // why there is nothing better to take: no solver, too many variables, no time; may be empty
};

// Relative distance to the bound at which searching on is not worth the time.
inline constexpr double close_enough = 5e-4;

// `start`: owners to improve, if there are any. The whole program is solved where it has at most
// `most_whole_variables`; larger ones by programs over a few slots at a time, the fullest and others.
inline constexpr int64_t most_whole_variables = 3000;
// A program over two slots with more variables than this is not tried.
inline constexpr int64_t most_variables = 20000;
MilpResult milp_counts(const Work& work, const std::optional<Counts>& start, MilpSolver& solver, double seconds);

}  // namespace dmuon
