#include <coin/Cbc_C_Interface.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/plan/milp_solver.h"
#include "plan/isolated_solver.h"

namespace dmuon {
namespace {

// The program by columns, as the library wants it.
struct Columns {
  std::vector<int> starts, rows;
  std::vector<double> values;
};

Columns columns_of(const MilpProblem& problem) {
  std::vector<std::vector<std::pair<int, double>>> by_column(problem.variables.size());
  for (size_t row = 0; row < problem.rows.size(); ++row)
    for (const auto& [variable, coefficient] : problem.rows[row].terms)
      by_column[static_cast<size_t>(variable)].push_back({static_cast<int>(row), coefficient});
  Columns columns;
  columns.starts.push_back(0);
  for (const auto& column : by_column) {
    for (const auto& [row, coefficient] : column) {
      columns.rows.push_back(row);
      columns.values.push_back(coefficient);
    }
    columns.starts.push_back(static_cast<int>(columns.rows.size()));
  }
  return columns;
}

class CbcSolver final : public MilpSolver {
 public:
  std::string name() const override { return text("CBC ", Cbc_getVersion()); }

  MilpSolution solve(const MilpProblem& problem, const MilpLimits& limits) override {
    const std::unique_ptr<Cbc_Model, void (*)(Cbc_Model*)> model(Cbc_newModel(), Cbc_deleteModel);
    if (model == nullptr) throw ConfigError("CBC could not make a model");
    load(model.get(), problem);
    Cbc_setLogLevel(model.get(), 0);
    Cbc_setParameter(model.get(), "messages", "off");
    Cbc_setParameter(model.get(), "threads", "0");
    Cbc_setParameter(model.get(), "timeMode", "elapsed");
    Cbc_setParameter(model.get(), "seconds", text(std::max(limits.seconds, 0.1)).c_str());
    if (limits.cautious) Cbc_setParameter(model.get(), "preprocess", "off");
    Cbc_setParameter(model.get(), "ratioGap", text(limits.relative_gap).c_str());
    if (!problem.start.empty()) {
      std::vector<int> indices(problem.start.size());
      for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int>(i);
      Cbc_setMIPStartI(model.get(), static_cast<int>(indices.size()), indices.data(), problem.start.data());
    }
    Cbc_solve(model.get());
    return solution_of(model.get(), problem);
  }

 private:
  static void load(Cbc_Model* model, const MilpProblem& problem) {
    const Columns columns = columns_of(problem);
    std::vector<double> lower, upper, objective, row_lower, row_upper;
    for (const MilpVariable& variable : problem.variables) {
      lower.push_back(variable.lower);
      upper.push_back(variable.upper);
      objective.push_back(variable.objective);
    }
    for (const MilpRow& row : problem.rows) {
      row_lower.push_back(row.lower);
      row_upper.push_back(row.upper);
    }
    Cbc_loadProblem(model, static_cast<int>(problem.variables.size()), static_cast<int>(problem.rows.size()), columns.starts.data(),
                    columns.rows.data(), columns.values.data(), lower.data(), upper.data(), objective.data(), row_lower.data(),
                    row_upper.data());
    Cbc_setObjSense(model, 1.0);
    for (size_t i = 0; i < problem.variables.size(); ++i) {
      // The MIP start is matched by name, also when it is given by index.
      Cbc_setColName(model, static_cast<int>(i), text("x", i).c_str());
      if (problem.variables[i].integer) Cbc_setInteger(model, static_cast<int>(i));
    }
  }

  static MilpSolution solution_of(Cbc_Model* model, const MilpProblem& problem) {
    MilpSolution solution;
    solution.bound = Cbc_getBestPossibleObjValue(model);
    if (!std::isfinite(solution.bound) || solution.bound < -1e40 || solution.bound > 1e40)
      solution.bound = -std::numeric_limits<double>::infinity();
    if (Cbc_isProvenInfeasible(model)) {
      solution.status = MilpStatus::infeasible;
      return solution;
    }
    const double* best = Cbc_numberSavedSolutions(model) > 0 ? Cbc_bestSolution(model) : nullptr;
    if (Cbc_isAbandoned(model) || best == nullptr) return solution;
    solution.values.assign(best, best + problem.variables.size());
    for (size_t i = 0; i < problem.variables.size(); ++i)
      if (problem.variables[i].integer) solution.values[i] = std::round(solution.values[i]);
    for (size_t i = 0; i < problem.variables.size(); ++i) solution.objective += problem.variables[i].objective * solution.values[i];
    solution.status = Cbc_isProvenOptimal(model) && Cbc_status(model) == 0 ? MilpStatus::optimal : MilpStatus::feasible;
    return solution;
  }
};

}  // namespace

std::unique_ptr<MilpSolver> make_cbc_solver() { return make_isolated_solver(std::make_unique<CbcSolver>()); }

}  // namespace dmuon
