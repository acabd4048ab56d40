// A mixed-integer linear program and who solves it.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace dmuon {

struct MilpVariable {
  double lower = 0.0, upper = 0.0;  // infinite bounds are allowed
  double objective = 0.0;           // coefficient; the sum is minimised
  bool integer = true;
};

struct MilpRow {  // lower <= sum of coefficient * variable <= upper
  std::vector<std::pair<int, double>> terms;
  double lower = 0.0, upper = 0.0;
};

struct MilpProblem {
  std::vector<MilpVariable> variables;
  std::vector<MilpRow> rows;
  std::vector<double> start;  // a feasible point to begin from, one value per variable; may be empty

  int add_variable(const MilpVariable& variable) {
    variables.push_back(variable);
    return static_cast<int>(variables.size()) - 1;
  }
};

struct MilpLimits {
  double seconds = 10.0;       // wall-clock; solvers look at the clock between nodes and may overrun it a little
  double relative_gap = 1e-4;  // good enough: (objective - bound) / objective
  bool cautious = false;       // without the tricks that make a solver fast and, at times, fail
};

enum class MilpStatus : uint8_t { optimal, feasible, infeasible, none };  // none: stopped without a solution

struct MilpSolution {
  MilpStatus status = MilpStatus::none;
  std::vector<double> values;  // integers exact; empty without a solution
  double objective = 0.0;
  double bound = -std::numeric_limits<double>::infinity();  // no solution is below
  std::string message;                                      // why there are no values, where the solver failed
};

class MilpSolver {
 public:
  virtual ~MilpSolver() = default;
  virtual std::string name() const = 0;  // "CBC 2.10.8"
  // Throws ConfigError when the solver cannot run. Prints nothing.
  virtual MilpSolution solve(const MilpProblem& problem, const MilpLimits& limits) = 0;
};

// COIN-OR CBC; in a build without it every call of solve throws a ConfigError that names the option. Each solve runs in a
// child process, because the library stops on failed assertions, installs signal handlers and keeps state of its own.
std::unique_ptr<MilpSolver> make_cbc_solver();

}  // namespace dmuon
