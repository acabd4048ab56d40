// Plans by integer programs, with the solver itself.
#include <chrono>
#include <cmath>

#include <limits>

#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "plan/greedy.h"
#include "plan/milp.h"
#include "plan/plan_support.h"
#include "plan/wall_oss.h"

using namespace dmuon;

namespace {

PlanOptions options_of(const TestInventory& inventory, int slots, PlanStrategy strategy) {
  return {.slots = slots, .strategy = strategy, .window_units = 1, .time_limit_seconds = 20.0, .cost_model = &inventory.costs};
}

}  // namespace

TEST_CASE("the solver solves, proves and says what is infeasible") {
  const std::unique_ptr<MilpSolver> solver = make_cbc_solver();
  CHECK_THAT(solver->name(), Catch::Contains("CBC"));
  // max 5a + 4b, 6a + 4b <= 24, a + 2b <= 6: the relaxation has 21 at (3, 1.5), integers 20 at (4, 0).
  MilpProblem problem;
  const int a = problem.add_variable({0, 10, -5, true}), b = problem.add_variable({0, 10, -4, true});
  problem.rows.push_back({{{a, 6}, {b, 4}}, -1e30, 24});
  problem.rows.push_back({{{a, 1}, {b, 2}}, -1e30, 6});
  for (bool cautious : {false, true}) {
    const MilpSolution solution = solver->solve(problem, {5.0, 0.0, cautious});
    CHECK(solution.status == MilpStatus::optimal);
    CHECK(solution.values == std::vector<double>{4, 0});
    CHECK(solution.objective == Approx(-20));
    CHECK(solution.bound == Approx(-20));
  }
  problem.rows.push_back({{{a, 2}}, 3, 3});  // no integer is 1.5
  CHECK(solver->solve(problem, {5.0}).status == MilpStatus::infeasible);
}

// Instances where moves and exchanges of single parts are stuck (the makespans by hand: sums of the parts).
TEST_CASE("the program beats greedy by at least three per cent") {
  struct Instance {
    std::string what;
    int slots;
    std::vector<TestShape> shapes;
    double greedy, best;
  };
  const std::vector<Instance> instances{
      {"no batches: sizes 3 3, 12, 8 8 8 8, 5 5 5 5", 4, {{{2}, 0, 3}, {{1}, 0, 12}, {{4}, 0, 8}, {{4}, 0, 5}}, 19, 18},
      {"no batches: sizes 10 10, 5 5 5, 2 2 2 2 2", 3, {{{1, 1}, 0, 10}, {{1, 2}, 0, 5}, {{4, 1}, 0, 2}}, 16, 15},
      {"batches within two windows", 4, {{{3, 2}, 4, 8}, {{1, 1}, 5, 3}, {{1, 3}, 8, 2}}, 28, 26},
      {"batches within two windows, others", 4, {{{2, 4}, 9, 5}, {{3, 1}, 1, 2}, {{2, 0}, 3, 6}}, 24, 22},
      {"batches in one window", 4, {{{4}, 6, 7}, {{1}, 9, 6}, {{1}, 5, 4}, {{4}, 6, 4}}, 27, 24},
  };
  for (const Instance& instance : instances) {
    const TestInventory inventory = inventory_of(instance.shapes);
    CAPTURE(instance.what);
    const Plan greedy = make_plan(inventory.tensors, inventory.units, options_of(inventory, instance.slots, PlanStrategy::greedy));
    const Plan milp = make_plan(inventory.tensors, inventory.units, options_of(inventory, instance.slots, PlanStrategy::milp));
    check_plan(greedy, inventory.tensors);
    check_plan(milp, inventory.tensors);
    CHECK(greedy.makespan() == Approx(instance.greedy));
    CHECK(milp.makespan() == Approx(instance.best));
    CHECK(greedy.makespan() >= 1.03 * milp.makespan());
    CHECK(milp.search.method == "milp");
    CHECK(milp.search.greedy_makespan == Approx(instance.greedy));
    CHECK(milp.lower_bound == Approx(instance.best));  // proved
    CHECK(milp.search.fallback.empty());
  }
}

TEST_CASE("Wall-OSS-0.5 with measured-like batched costs is within two per cent of its bound") {
  const std::vector<PlanTensor> tensors = wall_oss();
  REQUIRE(tensors.size() == 417);
  const CostModel costs = measured_like(tensors);
  for (int slots : {8, 16}) {
    PlanOptions options{.slots = slots, .strategy = PlanStrategy::milp, .time_limit_seconds = 3.0, .cost_model = &costs};
    const auto start = std::chrono::steady_clock::now();
    const Plan plan = make_plan(tensors, 105, options);
    CHECK(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < 30.0);
    check_plan(plan, tensors);
    CAPTURE(slots);
    CHECK(plan.makespan() <= 1.02 * plan.lower_bound);
    CHECK(plan.makespan() <= plan.search.greedy_makespan);
    const double without = makespan_without_batches(make_work(tensors, options));
    CHECK(without >= 1.2 * plan.makespan());
  }
}

TEST_CASE("GPT-2 124M without restarts: what greedy reaches is proved to be the best") {
  std::vector<PlanTensor> tensors;  // 48 square matrices and 24 of 4:1, in n^3
  for (int i = 0; i < 48; ++i) tensors.push_back({"square." + std::to_string(i), Shape{768, 768}, i / 4, true, 20.0});
  for (int i = 0; i < 24; ++i) tensors.push_back({"wide." + std::to_string(i), Shape{3072, 768}, i / 2, true, 29.0});
  for (int slots : {7, 16, 32}) {
    const Plan plan = make_plan(tensors, 12, {.slots = slots, .strategy = PlanStrategy::milp});
    CAPTURE(slots);
    CHECK(plan.makespan() == Approx(plan.search.greedy_makespan));
    CHECK(plan.makespan() <= plan.lower_bound * (1.0 + 1e-4));
    CHECK(plan.search.fallback.empty());
  }
}

TEST_CASE("a memory bound that greedy cannot meet is met by the program") {
  // Bytes 3 3 2 2 2 on two slots of 6: by bytes greedy makes 3 2 2 and 3 2.
  const TestInventory inventory = inventory_of({{{1}, 0, 1, Shape{3, 64}},
                                                {{1}, 0, 1, Shape{64, 3}},
                                                {{1}, 0, 1, Shape{2, 64}},
                                                {{1}, 0, 1, Shape{64, 2}},
                                                {{1}, 0, 1, Shape{128}}});
  PlanOptions options = options_of(inventory, 2, PlanStrategy::milp);
  options.memory_limit_bytes = 6 * 64 * 12;
  const Plan plan = make_plan(inventory.tensors, 1, options);
  check_plan(plan, inventory.tensors);
  CHECK(plan.bytes(inventory.tensors) == std::vector<int64_t>(2, 6 * 64 * 12));
  CHECK(plan.search.method == "milp");
  options.strategy = PlanStrategy::greedy;
  CHECK_THROWS_WITH(make_plan(inventory.tensors, 1, options), Catch::Contains("memory_limit_bytes") && Catch::Contains("need 5376"));
  // Three of 5 bytes do not fit two slots of 8, whoever looks.
  const TestInventory large = inventory_of({{{3}, 0, 1, Shape{5, 64}}});
  options = options_of(large, 2, PlanStrategy::milp);
  options.memory_limit_bytes = 8 * 64 * 12;
  CHECK_THROWS_AS(make_plan(large.tensors, 1, options), ConfigError);
  CHECK_THROWS_WITH(make_plan(large.tensors, 1, options),
                    Catch::Contains("do not fit 2 ranks within it (CBC") && Catch::Contains("need " + std::to_string(10 * 64 * 12)));
}

// The best makespan of all assignments that meet the bound; infinite where none does.
double best_of_all(const Work& work, Counts& counts, size_t group = 0, size_t slot = 0) {
  if (group == work.groups.size()) {
    const std::vector<int64_t> bytes = bytes_of(work, counts);
    return *std::max_element(bytes.begin(), bytes.end()) <= work.slot_bytes ? makespan_of(work, counts)
                                                                            : std::numeric_limits<double>::infinity();
  }
  int left = work.groups[group].count();
  for (size_t s = 0; s < slot; ++s) left -= counts[group][s];
  const bool last = slot + 1 == static_cast<size_t>(work.slots);
  double best = std::numeric_limits<double>::infinity();
  for (int take = last ? left : 0; take <= left; ++take) {
    counts[group][slot] = take;
    best = std::min(best, last ? best_of_all(work, counts, group + 1, 0) : best_of_all(work, counts, group, slot + 1));
  }
  counts[group][slot] = 0;
  return best;
}

TEST_CASE("optimum and bound of random small instances are those of a brute-force search") {
  const Random random(11, RandomStream::test);
  int infeasible = 0, feasible = 0;
  for (uint64_t round = 0; round < 40; ++round) {
    uint64_t draw = 0;
    const auto between = [&](int low, int high) {
      return low + static_cast<int>(random.below(static_cast<uint64_t>(high - low + 1), draw++, round));
    };
    std::vector<TestShape> shapes;
    const int kinds = between(1, 3), windows = between(1, 2);
    for (int k = 0; k < kinds; ++k) {
      TestShape shape{{}, static_cast<double>(between(0, 9)), static_cast<double>(between(1, 12)), Shape{between(1, 5), 64 + k}};
      for (int w = 0; w < windows; ++w) shape.in_unit.push_back(between(0, 3));
      shape.in_unit[0] += 1;
      shapes.push_back(std::move(shape));
    }
    const TestInventory inventory = inventory_of(shapes);
    PlanOptions options = options_of(inventory, between(2, 3), PlanStrategy::milp);
    Work work = make_work(inventory.tensors, options);
    if (between(0, 1) == 1) {  // a bound near what level bytes need
      int64_t total = 0;
      for (const WorkGroup& group : work.groups) total += group.count() * group.bytes;
      work.slot_bytes = total / work.slots + between(0, 2) * 64 * 12;
    }
    Counts counts(work.groups.size(), std::vector<int>(static_cast<size_t>(work.slots), 0));
    const double best = best_of_all(work, counts);
    const std::unique_ptr<MilpSolver> solver = make_cbc_solver();
    for (const std::optional<Counts>& start : {greedy_counts(work), std::optional<Counts>()}) {
      const MilpResult result = milp_counts(work, start, *solver, 20.0);
      CAPTURE(round, result.failure, work.slot_bytes, work.slots, start.has_value());
      REQUIRE(result.counts.has_value() == std::isfinite(best));
      if (!result.counts) {
        CHECK(result.infeasible);
        ++infeasible;
        continue;
      }
      const double found = makespan_of(work, *result.counts);
      CHECK(found >= best * (1.0 - 1e-9));
      CHECK(found <= best * (1.0 + close_enough));
      CHECK(result.bound <= best * (1.0 + 1e-9));
      CHECK(result.bound >= best * (1.0 - close_enough));
      ++feasible;
    }
  }
  CHECK(infeasible > 0);
  CHECK(feasible > 40);
}

TEST_CASE("at the same makespan the program does less work in total") {
  // One long matrix sets the makespan; the four others cost 4 x 3 apart and 2 + 4 together.
  const TestInventory inventory = inventory_of({{{1}, 0, 20}, {{4}, 2, 1}});
  const Plan plan = make_plan(inventory.tensors, 1, options_of(inventory, 3, PlanStrategy::milp));
  CHECK(plan.makespan() == Approx(20));
  double total = 0.0;
  for (double load : plan.loads) total += load;
  CHECK(total == Approx(26));
}
