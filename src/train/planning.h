// The plans of a run: made or read on rank 0, the same on every rank, kept with run and checkpoint. Tensors that agree by
// mean are planned over all ranks, those that agree by vote over the shards of one replica (JobPlans); a run without votes
// has one plan.
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
// For the plan of one agreement: the tensors of the other one keep their place, with unit -1. Buffers and what is frozen go
// with `mean`.
std::vector<PlanTensor> plan_tensors(const DistributionConfiguration& configuration, const Inventory& inventory, const RuleTable& table,
                                     Agreement agreement);

// On one process, with counted FLOPs where `costs` is null. What a dry run and rank 0 do.
JobPlans make_run_plans(const DistributionConfiguration& configuration, const Inventory& inventory, const RuleTable& table,
                        const RankGrid& grid, const CostModel* costs = nullptr);

// The plans as files keep them: Plan::to_json of the mean plan with the options it was made from, and, where there are votes,
// that of the vote plan under "vote".
Json plan_json(const Plan& mean, const Plan& vote, const DistributionConfiguration& configuration, const Inventory& inventory,
               const RuleTable& table);
// Report of both for people.
std::string describe_plans(const Plan& mean, const Plan& vote, const DistributionConfiguration& configuration, const Inventory& inventory,
                           const RuleTable& table);

struct PlanRequest {
  const DistributionConfiguration& configuration;
  const Inventory& inventory;
  const RuleTable& table;
  RankGrid grid;
  std::string stored;                // content of a checkpoint's plan.json; empty: none (rank 0)
  const CostModel* costs = nullptr;  // rank 0
};
// Collective: rank 0 takes the stored plans where their options and grid are this run's, else makes new ones; every rank reads
// what rank 0 sends. Logs how they came about, with makespans, bound and gap. AgreedError where no plan can be made.
JobPlans agree_on_plans(Communicator& world, const PlanRequest& request);

// Whether those will be the stored ones. Pure.
bool stored_plan_applies(const PlanRequest& request);

}  // namespace dmuon
