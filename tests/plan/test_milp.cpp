// What the planner does with a solver that fails, lies or is not there; no solver needed.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <limits>

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
  // Every upper bound: slots take more batches than windows give. Negative, missing, broken and undefined values.
  const auto answer = [&](auto value) {
    return fallback([value](const MilpProblem& problem, const MilpLimits&) {
      MilpSolution solution;
      solution.status = MilpStatus::optimal;
      for (const MilpVariable& variable : problem.variables) solution.values.push_back(value(variable));
      return solution;
    });
  };
  CHECK_THAT(answer([](const MilpVariable& variable) { return variable.upper; }), Contains("break the program's rows"));
  CHECK_THAT(answer([](const MilpVariable& variable) { return variable.integer ? -1.0 : variable.upper; }), Contains("break"));
  CHECK_THAT(answer([](const MilpVariable& variable) { return variable.integer ? 0.5 : variable.upper; }), Contains("break"));
  CHECK_THAT(answer([](const MilpVariable&) { return std::numeric_limits<double>::quiet_NaN(); }), Contains("break"));
  CHECK_THAT(fallback([](const MilpProblem&, const MilpLimits&) {
               MilpSolution solution;
               solution.values = {1.0};
               return solution;
             }),
             Contains("break the program's rows"));
  // A proof against what exists, with a bound that no owners keep.
  CHECK_THAT(fallback([](const MilpProblem&, const MilpLimits&) {
               MilpSolution solution;
               solution.status = MilpStatus::infeasible;
               solution.bound = 1e9;
               return solution;
             }),
             Contains("finds no owners although"));
  // The start handed back is no gain.
  CHECK_THAT(fallback([](const MilpProblem& problem, const MilpLimits&) {
               MilpSolution solution;
               solution.status = MilpStatus::feasible;
               solution.values = problem.start;
               return solution;
             }),
             Contains("nothing better"));
}

TEST_CASE("answers that break rows are refused where windows share their batches") {
  // Two windows of one class with batches of two sizes: what slots take is bounded by what windows give.
  const TestInventory inventory = inventory_of({{{3, 2}, 4, 8}, {{1, 1}, 5, 3}, {{1, 3}, 8, 2}});
  for (double given : {0.0, 1.0, -1.0}) {
    FakeSolver solver([&](const MilpProblem& problem, const MilpLimits&) {
      MilpSolution solution;
      solution.status = MilpStatus::optimal;
      solution.bound = 1e9;  // above any owners: cannot be true
      size_t i = 0;
      for (const MilpVariable& variable : problem.variables) solution.values.push_back(++i % 3 == 0 ? given : variable.upper);
      return solution;
    });
    const Plan plan = plan_with(solver, inventory);
    check_plan(plan, inventory.tensors);
    CHECK(solver.calls > 0);
    CHECK(plan.search.method == "greedy");
    CHECK(plan.lower_bound <= plan.makespan());
  }
}

TEST_CASE("a short limit is kept and still tries programs; one too short for any says so") {
  // 60 equal windows on 40 slots: too many variables for one program, and greedy far from the bound.
  std::vector<TestShape> shapes;
  for (int k = 0; k < 90; ++k) shapes.push_back({{1}, 0, 50.0 + (k * 37) % 51});
  const TestInventory inventory = inventory_of(shapes);
  FakeSolver solver([](const MilpProblem&, const MilpLimits& limits) {
    CHECK(limits.seconds <= 0.25);
    ::usleep(static_cast<useconds_t>(limits.seconds * 1e6));
    return MilpSolution{};
  });
  const auto plan = [&](double seconds) {
    return make_plan(inventory.tensors, 1,
                     {.slots = 40,
                      .strategy = PlanStrategy::milp,
                      .window_units = 1,
                      .time_limit_seconds = seconds,
                      .cost_model = &inventory.costs,
                      .solver = &solver});
  };
  const auto start = std::chrono::steady_clock::now();
  CHECK_THAT(plan(1.0).search.fallback, Catch::Contains("programs found nothing better"));
  CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 5.0);
  CHECK(solver.calls >= 3);
  solver.calls = 0;
  CHECK_THAT(plan(0.01).search.fallback, Catch::Contains("a limit of 0.01 s leaves no time for a program"));
  CHECK(solver.calls == 0);
}

TEST_CASE("a bound that nobody met says what is known, and the solver's own reason") {
  // Bytes 3 3 2 2 2 on two slots of 6: by bytes greedy makes 3 2 2 and 3 2, and 3 3 | 2 2 2 exists.
  const TestInventory inventory = inventory_of({{{1}, 0, 1, Shape{3, 64}},
                                                {{1}, 0, 1, Shape{64, 3}},
                                                {{1}, 0, 1, Shape{2, 64}},
                                                {{1}, 0, 1, Shape{64, 2}},
                                                {{1}, 0, 1, Shape{128}}});
  const auto refusal = [&](PlanStrategy strategy, FakeSolver::Solve solve) {
    FakeSolver solver(std::move(solve));
    PlanOptions options{.slots = 2, .strategy = strategy, .memory_limit_bytes = 6 * 64 * 12, .cost_model = &inventory.costs};
    options.solver = &solver;
    try {
      make_plan(inventory.tensors, 1, options);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using Catch::Contains;
  const auto absent = [](const MilpProblem&, const MilpLimits&) -> MilpSolution { throw ConfigError("no solver in this build"); };
  CHECK_THAT(refusal(PlanStrategy::greedy, absent), Contains("memory_limit_bytes is 4608") &&
                                                        Contains("greedy found no owners within it") && Contains("planner milp may") &&
                                                        Contains("need 5376") && !Contains("not fit"));
  CHECK_THAT(refusal(PlanStrategy::milp, absent), Contains("no solver in this build") && Contains("need 5376") && !Contains("not fit"));
  CHECK_THAT(refusal(PlanStrategy::milp, [](const MilpProblem&, const MilpLimits&) { return MilpSolution{}; }),
             Contains("no solution in") && !Contains("not fit"));
  CHECK_THAT(refusal(PlanStrategy::milp,
                     [](const MilpProblem&, const MilpLimits&) {
                       MilpSolution solution;
                       solution.status = MilpStatus::infeasible;
                       return solution;
                     }),
             Contains("do not fit 2 ranks within it (fake proves"));
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
  CHECK(plan.search.method == "greedy");
  CHECK(plan.search.fallback.empty());  // nothing can be better
  CHECK_THAT(plan.report(level.tensors).to_text(), Catch::Contains("owners are greedy's: within 0.05 % of the lower bound"));
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

TEST_CASE("a solver has none of its parent's files open, and any limit is within reason") {
  const int open_file = ::fcntl(STDERR_FILENO, F_DUPFD, 100);
  REQUIRE(open_file >= 100);
  for (double seconds : {5.0, 0.0, -1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    MilpProblem problem;
    problem.add_variable({0, 1, 1, true});
    const auto inside = [&](const MilpProblem&, const MilpLimits& limits) {
      MilpSolution solution;
      const bool closed = ::fcntl(open_file, F_GETFD) < 0;
      solution.values = {closed && limits.seconds >= 0.1 && limits.seconds <= 1e6 ? 1.0 : 0.0};
      return solution;
    };
    CAPTURE(seconds);
    CHECK(make_isolated_solver(std::make_unique<FakeSolver>(inside))->solve(problem, {seconds}).values == std::vector<double>{1.0});
  }
  ::close(open_file);
}

TEST_CASE("a killed process leaves no solver behind") {
  void* memory = ::mmap(nullptr, sizeof(std::atomic<pid_t>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* solving = new (memory) std::atomic<pid_t>(0);
  REQUIRE(::prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);  // the solver becomes a child of this process
  const auto comes_true = [](const auto& condition) {
    for (int i = 0; i < 2000 && !condition(); ++i) ::usleep(5000);
    return condition();
  };
  const pid_t job = ::fork();
  if (job == 0) {
    FakeSolver::Solve hang = [&](const MilpProblem&, const MilpLimits&) -> MilpSolution {
      *solving = ::getpid();
      while (true) ::pause();
    };
    MilpProblem problem;
    problem.add_variable({0, 1, 1, true});
    make_isolated_solver(std::make_unique<FakeSolver>(std::move(hang)))->solve(problem, {600.0});
    ::_exit(0);
  }
  REQUIRE(job > 0);
  CHECK(comes_true([&] { return *solving != 0; }));
  ::kill(job, SIGKILL);
  CHECK(::waitpid(job, nullptr, 0) == job);
  const pid_t solver = *solving;
  int status = 0;
  bool done = false;
  const bool gone = comes_true([&] { return done = done || ::waitpid(solver, &status, WNOHANG) == solver; });
  CHECK(gone);
  if (!gone && solver > 0) ::kill(solver, SIGKILL);
  CHECK(WIFSIGNALED(status));
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  ::munmap(memory, sizeof(std::atomic<pid_t>));
}
