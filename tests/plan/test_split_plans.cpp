// Tensors of one inventory in two plans: those that agree by mean over all slots, those that agree by vote over the shards
// of a replica.
#include <map>

#include "dmuon/core/error.h"
#include "plan/plan_support.h"

using namespace dmuon;

namespace {

// Every second tensor, whole ones and others, is of the other plan.
std::vector<PlanTensor> half(int parity, bool left_out) {
  std::vector<PlanTensor> tensors;
  for (int unit = 0; unit < 5; ++unit) {
    const std::string name = "blocks." + std::to_string(unit);
    tensors.push_back({name + ".a", Shape{64, 32}, unit, true, 3.0});
    tensors.push_back({name + ".b", Shape{48, 40}, unit, true, 2.0});
    tensors.push_back({name + ".bias", Shape{500}, unit});
  }
  std::vector<PlanTensor> kept;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (static_cast<int>(i % 2) != parity) {
      if (!left_out) continue;
      tensors[i].unit = -1;
    }
    kept.push_back(tensors[i]);
  }
  return kept;
}

}  // namespace

TEST_CASE("a plan leaves out the tensors of another plan and keeps the indices of the inventory") {
  for (PlanStrategy strategy : {PlanStrategy::greedy, PlanStrategy::round_robin, PlanStrategy::rank0})
    for (int parity : {0, 1}) {
      PlanOptions options;
      options.slots = 4;
      options.replicas = 2;
      options.cut_elements = 128;
      options.window_units = 2;
      options.strategy = strategy;
      const std::vector<PlanTensor> all = half(parity, true), kept = half(parity, false);
      const Plan plan = make_plan(all, 5, options), expected = make_plan(kept, 5, options);
      REQUIRE(plan.owners.size() == all.size());
      size_t next = 0;
      for (size_t i = 0; i < all.size(); ++i) CHECK(plan.owners[i] == (in_plan(all[i]) ? expected.owners[next++] : -1));
      // The layout of the tensors that are in it is that of a plan made from them alone.
      REQUIRE(plan.units.size() == expected.units.size());
      for (size_t unit = 0; unit < plan.units.size(); ++unit) {
        CHECK(plan.units[unit].cuts == expected.units[unit].cuts);
        REQUIRE(plan.units[unit].entries.size() == expected.units[unit].entries.size());
        for (size_t e = 0; e < plan.units[unit].entries.size(); ++e)
          CHECK(all[static_cast<size_t>(plan.units[unit].entries[e].tensor)].name ==
                kept[static_cast<size_t>(expected.units[unit].entries[e].tensor)].name);
      }
      CHECK(plan.report(all).bytes == expected.report(kept).bytes);
      CHECK(plan.report(all).matrices == expected.report(kept).matrices);
      const Plan read = plan_from_json(plan.to_json(all), all, 5, "plan");
      CHECK(read.hash() == plan.hash());
      // A tensor in the wrong one of two plans is named.
      CHECK_THROWS_WITH(plan_from_json(plan.to_json(all), half(1 - parity, true), 5, "plan"), Catch::Contains("tensor blocks.0"));
    }
}

TEST_CASE("a plan of nothing has units without elements") {
  std::vector<PlanTensor> tensors = half(0, true);
  for (PlanTensor& tensor : tensors) tensor.unit = -1;
  for (PlanStrategy strategy : {PlanStrategy::greedy, PlanStrategy::milp}) {
    PlanOptions options;
    options.slots = 3;
    options.strategy = strategy;
    const Plan plan = make_plan(tensors, 5, options);
    CHECK(plan.makespan() == 0.0);
    CHECK(plan.batches.empty());
    for (const UnitLayout& unit : plan.units) CHECK(unit.elements == 0);
    CHECK_FALSE(plan.report(tensors).to_text().empty());
  }
  tensors[0].unit = -2;
  CHECK_THROWS_AS(make_plan(tensors, 5, {}), ShapeError);
}
