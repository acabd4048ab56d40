// Times the owner's complete update of equal matrices for the planner: every rule, shape and batch size that a plan may use.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "dmuon/backend/backend.h"
#include "dmuon/optim/update_rule.h"
#include "dmuon/plan/cost_model.h"
#include "dmuon/plan/plan.h"

namespace dmuon {

struct UpdateProfileItem {
  int rule = 0;
  Shape shape;
  int largest_batch = 1;  // the most of them in any window: larger batches cannot be planned
};
// What a plan of these tensors may batch.
std::vector<UpdateProfileItem> update_profile_items(const std::vector<PlanTensor>& tensors, int window_units);

struct UpdateProfileOptions {
  double budget_seconds = 30.0;             // nothing new is begun that would end later
  int largest_batch = 16;                   // sizes are powers of two up to this, and the largest of a window
  int warm_up = 1, repeats = 5;             // per size; the median counts
  int64_t memory_bytes = int64_t{2} << 30;  // of tensors at a time; larger batches are not measured
  DType published_dtype = DType::float32;   // of the copy that the update publishes; in float32 the master is published
};

// The key under which measurements of these rules on this backend are kept. `tuning`: what the rules were tuned to, as
// text; it changes how fast they are, not their description.
CostKey update_profile_key(const Backend& backend, std::span<const std::unique_ptr<UpdateRule>> rules,
                           DType published_dtype = DType::float32, std::string_view tuning = {});

// Momentum, orthogonalisation, decay, apply and publish copy of b equal matrices in one call of the rule, on random
// data. Starts from `known` and measures what it lacks: single matrices of every item first, then batches, as far as
// the budget goes; what remains unmeasured the planner estimates from FLOPs. Blocks; one rank measures for all of a
// kind of machine and broadcasts to_json(). Rules are stepped (counters, step values), no parameter is touched.
CostModel measure_updates(Backend& backend, std::span<const std::unique_ptr<UpdateRule>> rules, std::span<const UpdateProfileItem> items,
                          const UpdateProfileOptions& options, CostModel known);

}  // namespace dmuon
