// What the owner's complete update of equal matrices costs on this machine: timed once, kept, the same on every rank.
#pragma once

#include "dmuon/backend/backend.h"
#include "dmuon/comm/communicator.h"
#include "dmuon/core/file.h"
#include "dmuon/optim/update_rule.h"
#include "dmuon/plan/cost_model.h"
#include "dmuon/plan/plan.h"

namespace dmuon {

struct UpdateCostRequest {
  const std::vector<PlanTensor>& tensors;
  std::span<const std::unique_ptr<UpdateRule>> rules;  // by index in the run's rule table
  int window_units = 4;
  DType published_dtype = DType::float32;
  std::string tuning = {};     // what the rules were tuned to (tune_rules), part of what the measurements depend on
  Path cache_directory;        // empty: nothing is kept
  double budget_seconds = 30;  // of timing; the planner estimates what remains from FLOPs
};

// Collective: rank 0 times what the cache does not know (shard/update_profile.h), every rank gets its model.
CostModel agree_on_update_costs(Communicator& world, Backend& backend, const UpdateCostRequest& request);

}  // namespace dmuon
