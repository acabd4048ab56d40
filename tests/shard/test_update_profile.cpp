// Measured costs of owner updates: what is measured, what the budget does, and that plans are made from them.
#include "dmuon/backend/measurement_key.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/muon.h"
#include "shard/update_profile.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

std::vector<PlanTensor> small_model() {
  std::vector<PlanTensor> tensors;
  for (int unit = 0; unit < 8; ++unit) {
    for (int i = 0; i < 3; ++i) tensors.push_back({text("blocks.", unit, ".", i), Shape{33, 48}, unit, true, 1.0});
    tensors.push_back({text("blocks.", unit, ".up"), Shape{96, 33}, unit, true, 2.0});
    tensors.push_back({text("blocks.", unit, ".bias"), Shape{33}, unit, false, 0.0, 1});
  }
  return tensors;
}

std::vector<std::unique_ptr<UpdateRule>> rules() {
  std::vector<std::unique_ptr<UpdateRule>> rules;
  rules.push_back(make_muon(muon_options("keller")));
  rules.push_back(make_adamw({0.9, 0.95, 1e-8, 0.1}));
  return rules;
}

std::vector<int> sizes_of(const ShapeCost& cost) {
  std::vector<int> sizes;
  for (const BatchCost& point : cost.batches) sizes.push_back(point.batch);
  return sizes;
}

}  // namespace

TEST_CASE("owner updates are timed for every shape and the batches that a window allows") {
  const std::vector<PlanTensor> tensors = small_model();
  const std::vector<UpdateProfileItem> items = update_profile_items(tensors, 2);
  REQUIRE(items.size() == 2);
  CHECK(items[0].largest_batch == 6);
  CHECK(items[1].largest_batch == 2);

  const auto backend = make_cpu_backend({.threads = 1});
  const auto table = rules();
  const CostKey key = update_profile_key(*backend, table);
  CHECK(key.rules.size() == 16);
  CHECK(key.machine.threads == 1);
  const CostModel model = measure_updates(*backend, table, items, {}, CostModel(key));
  REQUIRE(model.find(0, Shape{33, 48}) != nullptr);
  CHECK(sizes_of(*model.find(0, Shape{33, 48})) == std::vector<int>{1, 2, 4, 6});
  CHECK(sizes_of(*model.find(0, Shape{96, 33})) == std::vector<int>{1, 2});
  CHECK(model.find(1, Shape{33}) == nullptr);
  // Six matrices are more work than one, whatever the machine does meanwhile.
  CHECK(model.find(0, Shape{33, 48})->batches.back().seconds > model.find(0, Shape{33, 48})->batches.front().seconds);

  const Plan plan = make_plan(tensors, 8, {.slots = 3, .window_units = 2, .cost_model = &model});
  CHECK(plan.makespan() > 0.0);
  CHECK(plan.makespan() < 1.0);  // seconds, not FLOPs

  // What is known is not measured again; what it lacks is.
  const CostModel again = measure_updates(*backend, table, items, {}, model);
  CHECK(again.to_json() == model.to_json());
  const std::vector<UpdateProfileItem> wider = update_profile_items(tensors, 4);
  const CostModel more = measure_updates(*backend, table, wider, {}, model);
  CHECK(sizes_of(*more.find(0, Shape{33, 48})) == std::vector<int>{1, 2, 4, 8, 12});
  CHECK(sizes_of(*more.find(0, Shape{96, 33})) == std::vector<int>{1, 2, 4});
}

TEST_CASE("no budget, no measurement beyond it; large batches need memory") {
  const std::vector<PlanTensor> tensors = small_model();
  const std::vector<UpdateProfileItem> items = update_profile_items(tensors, 8);
  const auto backend = make_cpu_backend({.threads = 1});
  const auto table = rules();
  UpdateProfileOptions options;
  options.budget_seconds = 0.0;
  CHECK(measure_updates(*backend, table, items, options, {}).empty());
  options = {};
  options.memory_bytes = 4 * 33 * 48 * 4 * 4;  // four matrices with gradient, momentum and published copy
  const CostModel model = measure_updates(*backend, table, items, options, {});
  CHECK(sizes_of(*model.find(0, Shape{33, 48})) == std::vector<int>{1, 2, 4});
}

TEST_CASE("another rule makes another key") {
  const auto backend = make_cpu_backend({.threads = 1});
  auto table = rules();
  const std::string before = update_profile_key(*backend, table).rules;
  CHECK(update_profile_key(*backend, rules()).rules == before);
  CHECK(update_profile_key(*backend, table, DType::bfloat16).rules != before);
  CHECK(update_profile_key(*backend, table, DType::float32, "[{\"batch\":4}]").rules != before);
  // A change of this project's kernels is a change of libraries.
  CHECK_THAT(update_profile_key(*backend, table).machine.libraries, Catch::Contains(backend->information().gemm) &&
                                                                        Catch::Contains("dmuon ") &&
                                                                        Catch::EndsWith("kernels " + std::to_string(kernel_revision)));
  table[0] = make_muon(muon_options("dmuon"));
  CHECK(update_profile_key(*backend, table).rules != before);
}
