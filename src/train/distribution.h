// From the configuration's section "distribution" to the rank grid and the options of planner and sharded model.
#pragma once

#include <memory>

#include "dmuon/comm/communicator.h"
#include "dmuon/comm/rank_grid.h"
#include "dmuon/config/configuration.h"
#include "dmuon/nn/parameter.h"
#include "dmuon/plan/plan.h"
#include "dmuon/shard/options.h"

namespace dmuon {

// Where the ranks are: `nodes` equal runs of consecutive ranks, `grid.replicas` shard groups.
struct RunGrid {
  int nodes = 1;
  RankGrid grid;
  bool votes = false;  // some rule agrees by vote: a replica is a worker
};

// `machine_nodes`: nodes that the ranks really are on. `votes`: some rule agrees by vote (any_rule_votes); a replica is then a
// worker. Where replicas are left to the run, a node is one replica, and in a run of votes every rank, whatever the machine.
// ConfigError naming distribution.nodes or .replicas and `ranks` where one does not divide the other.
RunGrid make_run_grid(const DistributionConfiguration& configuration, int ranks, int machine_nodes, bool votes = false);

// Nodes of a group, by Communicator::node.
int count_nodes(const Communicator& world);

// Where a rank is: the node's number (Communicator::node) and its name.
struct RankPlace {
  int node = 0;
  std::string host;
};

// ConfigError naming the first rank that is not on the node of its run of consecutive ranks, where the grid follows the nodes: they are
// given, or replicas are left to the run, or votes should cross between nodes and all else inside (replicas of several ranks,
// as many on each node).
void require_runs_in_nodes(const DistributionConfiguration& configuration, const RunGrid& run, const std::vector<RankPlace>& ranks);

// The ranks as the grid wants them: `all` divided into virtual nodes where the run has more than the machine, null where `all`
// serves. Collective. Errors of require_runs_in_nodes.
std::unique_ptr<Communicator> divide_ranks(const DistributionConfiguration& configuration, const RunGrid& run, Communicator& all);

// One stage per unit. ConfigError naming a pattern that matches no unit, with the units there are.
std::vector<int> make_unit_stages(const DistributionConfiguration& configuration, const Inventory& inventory);

PlanOptions plan_options(const DistributionConfiguration& configuration, const RankGrid& grid);
// Without trace and vote_seed.
ShardedModelOptions sharded_options(const DistributionConfiguration& configuration, const Inventory& inventory, const RankGrid& grid);

// "owner, stage 2, 4 ranks = 2 replicas x 2 shards on 2 nodes, parameters float32, gradients bfloat16": for people.
std::string describe_distribution(const DistributionConfiguration& configuration, const Inventory& inventory, const RunGrid& run);

}  // namespace dmuon
