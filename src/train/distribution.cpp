#include "train/distribution.h"

#include <algorithm>
#include <set>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/routing.h"

namespace dmuon {
namespace {

DType wire_dtype(const std::string& name) { return name == "bfloat16" ? DType::bfloat16 : DType::float32; }

GatherForm gather_form(const std::string& name) {
  if (name == "all_gather") return GatherForm::all_gather;
  if (name == "broadcasts") return GatherForm::broadcasts;
  if (name == "padded") return GatherForm::padded;
  return GatherForm::automatic;
}

}  // namespace

int count_nodes(const Communicator& world) {
  std::set<int> nodes;
  for (int rank = 0; rank < world.size(); ++rank) nodes.insert(world.node(rank));
  return static_cast<int>(nodes.size());
}

RunGrid make_run_grid(const DistributionConfiguration& configuration, int ranks, int machine_nodes, bool votes) {
  RunGrid run;
  run.votes = votes;
  const int asked = static_cast<int>(configuration.nodes);
  if (asked > 0 && asked < machine_nodes)
    throw ConfigError(text("distribution.nodes = ", asked, ": the ", ranks, " ranks are on ", machine_nodes,
                           " nodes, which cannot count as fewer; write 0 for the machine's"));
  if (asked > 0 && ranks % asked != 0)
    throw ConfigError(text("distribution.nodes = ", asked, " does not divide ", ranks, " ranks; choose a divisor or 0"));
  run.nodes = asked > 0 ? asked : machine_nodes;
  int replicas = static_cast<int>(configuration.replicas);
  // Without a wish: every rank votes, as in the paper, or a replica per node, where nodes are alike.
  if (replicas == 0) replicas = votes ? ranks : ranks % run.nodes == 0 ? run.nodes : 1;
  if (ranks % replicas != 0)
    throw ConfigError(text("distribution.replicas = ", replicas, " does not divide ", ranks, " ranks; choose a divisor or 0"));
  run.grid = make_rank_grid(ranks, replicas);
  return run;
}

void require_runs_in_nodes(const DistributionConfiguration& configuration, const RunGrid& run, const std::vector<RankPlace>& ranks) {
  // One rank in every replica: no shard group has to lie in a node.
  const bool shards = run.grid.shards > 1, left = configuration.replicas == 0;
  const bool follows_nodes = configuration.nodes > 0 || (shards && (left || (run.votes && run.grid.replicas % run.nodes == 0)));
  const size_t nodes = static_cast<size_t>(run.nodes);
  if (nodes == 1 || ranks.size() % nodes != 0 || !follows_nodes) return;
  const size_t run_length = ranks.size() / nodes;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const size_t first = rank / run_length * run_length;
    if (ranks[rank].node == ranks[first].node) continue;
    throw ConfigError(text("distribution: ", run.nodes, " nodes of ", run_length, " consecutive ranks each, but rank ", rank, " is on ",
                           ranks[rank].host, " and rank ", first, " on ", ranks[first].host,
                           "; start the ranks of a node one after the other, as many on each (mpirun --map-by slot), or set "
                           "distribution.replicas (1 shards over all ranks",
                           run.votes ? text(", ", ranks.size(), " makes every rank a worker") : "", ")"));
  }
}

std::unique_ptr<Communicator> divide_ranks(const DistributionConfiguration& configuration, const RunGrid& run, Communicator& all) {
  std::vector<RankPlace> ranks;
  for (int rank = 0; rank < all.size(); ++rank) ranks.push_back({all.node(rank), all.host(rank)});
  require_runs_in_nodes(configuration, run, ranks);
  return run.nodes > count_nodes(all) ? all.divide_into_nodes(run.nodes, "virtual nodes") : nullptr;
}

std::vector<int> make_unit_stages(const DistributionConfiguration& configuration, const Inventory& inventory) {
  std::vector<int> stages(inventory.units().size(), static_cast<int>(configuration.stage));
  std::vector<bool> decided(stages.size(), false);
  for (size_t i = 0; i < configuration.unit_stages.size(); ++i) {
    const std::string& entry = configuration.unit_stages[i];
    const size_t equals = entry.rfind('=');
    bool used = false;
    for (size_t unit = 0; unit < stages.size(); ++unit) {
      if (decided[unit] || !matches_pattern(entry.substr(0, equals), inventory.units()[unit].name)) continue;
      stages[unit] = entry.back() - '0';
      decided[unit] = used = true;
    }
    if (used) continue;
    std::vector<std::string> names;
    for (const UnitDeclaration& unit : inventory.units()) names.push_back(unit.name);
    throw ConfigError(text("distribution.unit_stages.", i, " = \"", entry,
                           "\" decides for no unit: it matches none, or earlier entries have taken them. Units: ", join(names, ", ")));
  }
  return stages;
}

PlanOptions plan_options(const DistributionConfiguration& configuration, const RankGrid& grid) {
  PlanOptions options;
  options.slots = grid.ranks();
  options.replicas = grid.replicas;
  options.shards = grid.shards;
  options.strategy = plan_strategy_from_name(configuration.planner);
  options.cut_elements = configuration.cut_elements;
  options.window_units = static_cast<int>(configuration.window_units);
  options.memory_limit_bytes = configuration.memory_limit_bytes;
  options.time_limit_seconds = configuration.planner_time_limit_seconds;
  return options;
}

ShardedModelOptions sharded_options(const DistributionConfiguration& configuration, const Inventory& inventory, const RankGrid& grid) {
  ShardedModelOptions options;
  options.distribution = distribution_from_name(configuration.method);
  options.replicas = grid.replicas;
  options.stage = static_cast<int>(configuration.stage);
  if (!configuration.unit_stages.empty()) options.unit_stages = make_unit_stages(configuration, inventory);
  options.compute_dtype = wire_dtype(configuration.compute_dtype);
  options.gradient_dtype = wire_dtype(configuration.gradient_dtype);
  options.reduce_every_micro_batch = configuration.reduce == "every";
  options.overlap = configuration.overlap;
  options.look_ahead = static_cast<int>(configuration.look_ahead);
  options.outstanding_reduces = static_cast<int>(configuration.look_ahead);
  options.publish_form = gather_form(configuration.publish_form);
  options.vote_transport = vote_transport_from_name(configuration.vote_transport);
  return options;
}

std::string describe_distribution(const DistributionConfiguration& configuration, const Inventory& inventory, const RunGrid& run) {
  std::string stages = text("stage ", configuration.stage);
  if (!configuration.unit_stages.empty()) {
    const std::vector<int> of_unit = make_unit_stages(configuration, inventory);
    std::vector<std::string> parts;
    for (int stage = 1; stage <= 3; ++stage)
      if (const auto count = std::count(of_unit.begin(), of_unit.end(), stage); count > 0)
        parts.push_back(text(count, count == 1 ? " unit" : " units", " of stage ", stage));
    stages = join(parts, ", ");
  }
  if (configuration.method == "replicated") stages = "everything on every rank";  // whatever the stage says
  const RankGrid& grid = run.grid;
  std::string out = text(configuration.method, ", ", stages, ", ", grid.ranks(), grid.ranks() == 1 ? " rank" : " ranks");
  if (grid.ranks() > 1) out += text(" = ", grid.replicas, grid.replicas == 1 ? " replica x " : " replicas x ", grid.shards, " shards");
  if (run.nodes > 1) out += text(" on ", run.nodes, configuration.nodes > 0 ? " nodes (distribution.nodes)" : " nodes");
  return out + text("; parameters travel as ", configuration.compute_dtype, ", gradients as ", configuration.gradient_dtype,
                    configuration.overlap ? "" : "; no overlap");
}

}  // namespace dmuon
