#include "dmuon/plan/plan.h"

#include <algorithm>
#include <map>

#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "plan/plan_support.h"

using namespace dmuon;

TEST_CASE("random inventories: every element has exactly one slot") {
  const Random random(7, RandomStream::test);
  for (uint64_t round = 0; round < 400; ++round) {
    uint64_t draw = 0;
    const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random.below(bound, draw++, round)); };
    const int units = static_cast<int>(1 + below(4));
    std::vector<PlanTensor> tensors;
    const int64_t count = below(14);
    for (int64_t i = 0; i < count; ++i) {
      PlanTensor tensor;
      tensor.name = "t" + std::to_string(i);
      tensor.shape = Shape{1 + below(400), 1 + below(600)};
      tensor.unit = static_cast<int>(below(static_cast<uint64_t>(units)));
      tensor.whole = below(2) == 0;
      tensor.cost = tensor.whole ? static_cast<double>(tensor.shape.elements()) : 0.0;
      tensors.push_back(tensor);
    }
    PlanOptions options;
    options.slots = static_cast<int>(1 + below(9));
    options.cut_elements = 64 << below(9);
    options.strategy = static_cast<PlanStrategy>(below(3));
    check_plan(make_plan(tensors, units, options), tensors);
  }
}

TEST_CASE("more slots than matrices leaves slots empty, and the plan says the same on every rank") {
  std::vector<PlanTensor> tensors{{"a", Shape{72, 50}, 0, true, 2.0}, {"b", Shape{5, 7}, 0, true, 1.0}, {"c", Shape{1, 9}, 0, true, 1.0}};
  PlanOptions options;
  options.slots = 16;
  const Plan plan = make_plan(tensors, 1, options);
  check_plan(plan, tensors);
  CHECK(plan.hash() == make_plan(tensors, 1, options).hash());
  options.slots = 8;
  CHECK(plan.hash() != make_plan(tensors, 1, options).hash());
}

TEST_CASE("bad options name the key") {
  CHECK_THROWS_AS(plan_strategy_from_name("milpp"), ConfigError);
  PlanOptions options;
  options.cut_elements = 100;
  CHECK_THROWS_WITH(make_plan({}, 1, options), Catch::Contains("cut_elements"));
}

namespace {

struct Stored {
  std::vector<PlanTensor> tensors;
  Plan plan;
  Json json;
};

Stored stored_plan() {
  Stored stored;
  for (int unit = 0; unit < 6; ++unit) {
    const std::string name = "blocks." + std::to_string(unit);
    stored.tensors.push_back({name + ".a", Shape{64, 32}, unit, true, 3.0});
    stored.tensors.push_back({name + ".b", Shape{64, 32}, unit, true, 3.0});
    stored.tensors.push_back({name + ".bias", Shape{500}, unit});
  }
  stored.tensors.push_back({"embedding", Shape{1000, 8}, 6});
  stored.plan = make_plan(stored.tensors, 7, {.slots = 4, .cut_elements = 128, .window_units = 2, .replicas = 2});
  stored.json = stored.plan.to_json(stored.tensors);
  return stored;
}

// The message of the error that the changed plan gives.
std::string refusal(const Json& json, const std::vector<PlanTensor>& tensors, int units = 7) {
  try {
    plan_from_json(json, tensors, units, "runs/a/plan.json");
  } catch (const CheckpointError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a stored plan is replayed as it was") {
  const Stored stored = stored_plan();
  check_plan(stored.plan, stored.tensors);
  const Plan read = plan_from_json(parse_json(stored.json.dump(), "plan"), stored.tensors, 7, "plan");
  CHECK(read.hash() == stored.plan.hash());
  CHECK(read.owners == stored.plan.owners);
  CHECK(read.units == stored.plan.units);
  CHECK(read.window_of_unit == stored.plan.window_of_unit);
  CHECK(read.window_of_unit == std::vector<int>{0, 0, 1, 1, 2, 2, 3});
  CHECK(read.batches == stored.plan.batches);
  CHECK(read.loads == stored.plan.loads);
  CHECK(read.replicas == 2);
  CHECK(read.to_json(stored.tensors) == stored.json);
}

TEST_CASE("a stored plan that does not fit names what is wrong") {
  const Stored stored = stored_plan();
  using Catch::Contains;
  CHECK_THAT(refusal(stored.json, {}), Contains("runs/a/plan.json") && Contains("tensor") && Contains("is not in the model"));
  std::vector<PlanTensor> tensors = stored.tensors;
  tensors.push_back({"head", Shape{8, 8}, 6, true, 1.0});
  CHECK_THAT(refusal(stored.json, tensors), Contains("tensor head is missing"));
  tensors = stored.tensors;
  tensors[0].whole = false;
  CHECK_THAT(refusal(stored.json, tensors), Contains("tensor blocks.0.a may be cut"));
  tensors = stored.tensors;
  tensors[4].shape = Shape{64, 33};
  CHECK_THAT(refusal(stored.json, tensors), Contains("tensor blocks.1."));
  tensors = stored.tensors;
  tensors[1].unit = 1;
  CHECK_THAT(refusal(stored.json, tensors), Contains("tensor blocks.0.b lies in unit 0"));
  CHECK_THAT(refusal(stored.json, stored.tensors, 8), Contains("7 units, the model 8"));
  tensors = stored.tensors;
  tensors[0].rule = 1;
  // Both in one batch only if they share an owner: give both to slot 0 first.
  const Plan together = make_plan(stored.tensors, 7, {.slots = 1});
  CHECK_THAT(refusal(together.to_json(stored.tensors), tensors), Contains("blocks.0.a") && Contains("rules differ"));

  const auto changed = [&](const auto& change) {
    Json json = stored.json;
    change(json);
    return refusal(json, stored.tensors);
  };
  CHECK_THAT(changed([](Json& j) { j.set("version", 1); }), Contains("version 1"));
  CHECK_THAT(changed([](Json& j) { j.set("slots", 0); }), Contains("slots"));
  CHECK_THAT(changed([](Json& j) { j.set("replicas", 3); }), Contains("3 replicas and 2 shards"));
  CHECK_THAT(changed([](Json& j) { j.set("cut_elements", 100); }), Contains("cut_elements"));
  CHECK_THAT(changed([](Json& j) { j.set("batches", Json::array()); }), Contains("blocks.0.a is in no batch"));
  CHECK_THAT(changed([](Json& j) { j.find("batches")->as_array()[0].set("window", 3); }), Contains("window 3"));
  CHECK_THAT(changed([](Json& j) { j.find("units")->as_array()[0].set("window", 1); }), Contains("unit 0 is in window 1"));
  CHECK_THAT(changed([](Json& j) { j.find("units")->as_array()[6].find("cuts")->as_array()[1] = Json(100); }),
             Contains("embedding") || Contains("cut"));
  CHECK_THAT(changed([](Json& j) {
               j.find("units")->as_array()[6].set("elements", int64_t{1} << 50);
               j.find("units")->as_array()[6].find("cuts")->as_array()[4] = Json(int64_t{1} << 50);
             }),
             Contains("unit 6 has 1125899906842624 elements, but its tensors take 8000"));
  CHECK_THAT(changed([](Json& j) { j.find("units")->as_array()[0].find("tensors")->as_array()[0].set("offset", 3); }),
             Contains("blocks.0."));
  CHECK_THAT(changed([](Json& j) { j.find("units")->as_array()[0].find("tensors")->as_array()[0].set("offset", int64_t{1} << 62); }),
             Contains("blocks.0."));
}

TEST_CASE("the report says how the plan came about and how level it is") {
  const std::vector<PlanTensor> tensors{
      {"a", Shape{64, 64}, 0, true, 3.0}, {"b", Shape{64, 64}, 0, true, 3.0}, {"c", Shape{64, 128}, 1, true, 5.0}};
  const PlanReport report = make_plan(tensors, 3, {.slots = 2, .window_units = 1}).report(tensors);
  CHECK(report.search.method == "greedy");
  CHECK(report.matrices == 3);
  CHECK(report.windows == 3);
  CHECK(report.makespan == Approx(6.0));
  CHECK(report.gap == Approx(6.0 / 5.5 - 1.0));
  CHECK(report.load_ratio == Approx(6.0 / 5.5));
  CHECK(report.bytes == std::vector<int64_t>{64 * 128 * 12, 64 * 128 * 12});
  CHECK(report.bytes_ratio == Approx(1.0));
  CHECK(report.publish_balance == std::vector<double>{2.0, 2.0, 1.0});  // each unit on one slot of two; the last is empty
  using Catch::Contains;
  CHECK_THAT(report.to_text(),
             Contains("plan by greedy: 3 matrices in 2 batches (largest 2) on 2 slots, 3 windows") && Contains("gap 9.09 %"));
  CHECK(parse_json(report.to_json().dump(), "report").at("publish_balance").as_array().size() == 3);
  const PlanReport none = make_plan({}, 0, {.slots = 3}).report({});
  CHECK(none.gap == 0.0);
  CHECK(none.load_ratio == 1.0);
  CHECK_THAT(none.to_text(), Contains("0 matrices"));
}
