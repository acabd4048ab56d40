// What the planner does with a solver that fails, lies or is not there; no solver needed.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>

#include "dmuon/core/error.h"
#include "plan/isolated_solver.h"
#include "plan/plan_support.h"

using namespace dmuon;

namespace {

class FakeSolver final : public MilpSolver {
 public:
  using Solve = std::function<MilpSolution(const MilpProblem&, const MilpLimits&)>;
  explicit FakeSolver(Solve solve) : solve_(std::move(solve)) {}
  std::string name() const override { return "fake"; }
  MilpSolution solve(const MilpProblem& problem, const MilpLimits& limits) override {
    ++calls;
    return solve_(problem, limits);
  }
  int calls = 0;

 private:
  Solve solve_;
};

// Greedy makes 19, the optimum is 18.
TestInventory stuck() { return inventory_of({{{2}, 0, 3}, {{1}, 0, 12}, {{4}, 0, 8}, {{4}, 0, 5}}); }

Plan plan_with(MilpSolver& solver, const TestInventory& inventory, int slots = 4) {
  return make_plan(inventory.tensors, inventory.units,
                   {.slots = slots, .strategy = PlanStrategy::milp, .window_units = 1, .cost_model = &inventory.costs, .solver = &solver});
}

}  // namespace

TEST_CASE("a solver that is absent, out of time or wrong leaves greedy's plan and the reason") {
  const TestInventory inventory = stuck();
  const Plan greedy = make_plan(inventory.tensors, 1, {.slots = 4, .window_units = 1, .cost_model = &inventory.costs});
  const auto fallback = [&](FakeSolver::Solve solve) {
    FakeSolver solver(std::move(solve));
    const Plan plan = plan_with(solver, inventory);
    check_plan(plan, inventory.tensors);
    CHECK(plan.owners == greedy.owners);
    CHECK(plan.strategy == "milp");
    CHECK(plan.search.method == "greedy");
    return plan.search.fallback;
  };
  using Catch::Contains;
  CHECK_THAT(fallback([](const MilpProblem&, const MilpLimits&) -> MilpSolution { throw ConfigError("no solver in this build"); }),
             Contains("no solver in this build"));
  CHECK_THAT(fallback([](const MilpProblem&, const MilpLimits&) { return MilpSolution{}; }), Contains("no solution in"));
  CHECK_THAT(fallback([](const MilpProblem&, const MilpLimits&) {
               MilpSolution solution;
               solution.message = "fake died by signal 6";
               return solution;
             }),
             Contains("died by signal 6"));
  // Zeros place nothing.
  CHECK_THAT(fallback([](const MilpProblem& problem, const MilpLimits&) {
               MilpSolution solution;
               solution.status = MilpStatus::optimal;
               solution.values.assign(problem.variables.size(), 0.0);
               return solution;
             }),
             Contains("break the program's rows"));
  // The start handed back is no gain.
  CHECK_THAT(fallback([](const MilpProblem& problem, const MilpLimits&) {
               MilpSolution solution;
               solution.status = MilpStatus::feasible;
               solution.values = problem.start;
               return solution;
             }),
             Contains("nothing better"));
}

TEST_CASE("the start of every program is feasible, and a failed program is tried once more with care") {
  const TestInventory inventory = inventory_of({{{3, 2, 0, 4}, 4, 8}, {{1, 1, 2, 1}, 5, 3}, {{1, 3, 1, 1}, 8, 2}});
  int careful = 0;
  FakeSolver solver([&](const MilpProblem& problem, const MilpLimits& limits) {
    REQUIRE(problem.start.size() == problem.variables.size());
    for (size_t i = 0; i < problem.variables.size(); ++i) {
      CHECK(problem.start[i] >= problem.variables[i].lower);
      CHECK(problem.start[i] <= problem.variables[i].upper);
    }
    for (const MilpRow& row : problem.rows) {
      double sum = 0.0;
      for (const auto& [variable, coefficient] : row.terms) sum += coefficient * problem.start[static_cast<size_t>(variable)];
      CHECK(sum >= row.lower - 1e-9);
      CHECK(sum <= row.upper + 1e-9);
    }
    careful += limits.cautious;
    MilpSolution solution;
    solution.message = "fake failed";
    return solution;
  });
  for (int slots : {2, 3, 5, 9}) plan_with(solver, inventory, slots);
  CHECK(solver.calls > 0);
  CHECK(2 * careful == solver.calls);
}

TEST_CASE("greedy at the bound needs no program; odd inventories have plans") {
  FakeSolver solver([](const MilpProblem&, const MilpLimits&) -> MilpSolution { throw ConfigError("must not be called"); });
  const TestInventory level = inventory_of({{{4}, 0, 1}});
  const Plan plan = plan_with(solver, level);
  CHECK(plan.makespan() == Approx(1.0));
  CHECK_THAT(plan.search.fallback, Catch::Contains("meets the lower bound"));
  for (PlanStrategy strategy : {PlanStrategy::greedy, PlanStrategy::milp, PlanStrategy::round_robin, PlanStrategy::rank0})
    for (int slots : {1, 2, 7, 300}) {
      const PlanOptions options{.slots = slots, .strategy = strategy, .solver = &solver};
      const Plan none = make_plan({}, 0, options);
      CHECK(none.makespan() == 0.0);
      CHECK(none.batches.empty());
      const std::vector<PlanTensor> vectors{{"a", Shape{70}, 0}, {"b", Shape{0}, 1}, {"c", Shape{1000, 100}, 1}};
      check_plan(make_plan(vectors, 2, options), vectors);
      const std::vector<PlanTensor> few{{"a", Shape{7, 9}, 0, true, 5.0}, {"b", Shape{1, 3}, 2, true, 0.0}, {"c", Shape{100}, 1}};
      check_plan(make_plan(few, 3, options), few);
      CHECK(solver.calls == 0);
    }
}

TEST_CASE("a solver in a child process may crash, hang, throw or print: the caller lives on") {
  const auto run = [](FakeSolver::Solve solve, double seconds = 5.0) {
    MilpProblem problem;
    problem.add_variable({0, 1, 1, true});
    return make_isolated_solver(std::make_unique<FakeSolver>(std::move(solve)))->solve(problem, {seconds});
  };
  const auto start = std::chrono::steady_clock::now();
  const MilpSolution good = run([](const MilpProblem&, const MilpLimits&) {
    std::puts("a banner");
    MilpSolution solution;
    solution.status = MilpStatus::feasible;
    solution.values = {1.0};
    solution.objective = 1.0;
    solution.bound = 0.5;
    return solution;
  });
  CHECK(good.status == MilpStatus::feasible);
  CHECK(good.values == std::vector<double>{1.0});
  CHECK(good.bound == 0.5);
  CHECK(good.message.empty());
  const MilpSolution crashed = run([](const MilpProblem&, const MilpLimits&) -> MilpSolution { std::abort(); });
  CHECK(crashed.status == MilpStatus::none);
  CHECK(crashed.message == "fake died by signal 6");
  const MilpSolution hung = run(
      [](const MilpProblem&, const MilpLimits&) -> MilpSolution {
        while (true) ::pause();
      },
      0.01);
  CHECK(hung.message == "fake did not keep its time limit");
  CHECK_THROWS_WITH(run([](const MilpProblem&, const MilpLimits&) -> MilpSolution { throw ConfigError("not today"); }), "not today");
  const MilpSolution silent = run([](const MilpProblem&, const MilpLimits&) -> MilpSolution { ::_exit(3); });
  CHECK(silent.message == "fake gave no answer");
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 60.0);
}
