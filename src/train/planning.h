// The plan of a run: made or read on rank 0, the same on every rank, kept with run and checkpoint.
#pragma once

#include <string>
#include <vector>

#include "dmuon/comm/communicator.h"
#include "dmuon/config/configuration.h"
#include "dmuon/nn/parameter.h"
#include "dmuon/plan/cost_model.h"
#include "dmuon/plan/plan.h"
#include "dmuon/shard/sharded_model.h"
#include "train/distribution.h"

namespace dmuon {

// Costs of whole tensors are the FLOPs of their rule. With method gather no tensor is whole: equal flat shards.
std::vector<PlanTensor> plan_tensors(const DistributionConfiguration& configuration, const Inventory& inventory, const RuleTable& table);

// On one process, with counted FLOPs where `costs` is null. What a dry run and rank 0 do.
Plan make_run_plan(const DistributionConfiguration& configuration, const Inventory& inventory, const RuleTable& table, const RankGrid& grid,
                   const CostModel* costs = nullptr);

// The plan as files keep it: Plan::to_json with the options it was made from.
Json plan_json(const Plan& plan, const DistributionConfiguration& configuration, const Inventory& inventory, const RuleTable& table);

struct PlanRequest {
  const DistributionConfiguration& configuration;
  const Inventory& inventory;
  const RuleTable& table;
  RankGrid grid;
  std::string stored;                // content of a checkpoint's plan.json; empty: none (rank 0)
  const CostModel* costs = nullptr;  // rank 0
};
// Collective: rank 0 takes the stored plan where its options and grid are this run's, else makes one; every rank reads
// what rank 0 sends. Logs how it came about, with makespans, bound and gap. AgreedError where no plan can be made.
Plan agree_on_plan(Communicator& world, const PlanRequest& request);

// Whether that plan will be the stored one. Pure.
bool stored_plan_applies(const PlanRequest& request);

}  // namespace dmuon
