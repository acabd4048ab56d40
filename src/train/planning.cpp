#include "train/planning.h"

#include <algorithm>
#include <optional>

#include "dmuon/core/error.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "train/agreement.h"
#include "train/local_state.h"

namespace dmuon {
namespace {

// Every option that a plan depends on.
Json options_json(const DistributionConfiguration& d, const RankGrid& grid) {
  Json out = Json::object();
  out.set("method", d.method);
  out.set("planner", d.planner);
  out.set("replicas", grid.replicas);
  out.set("shards", grid.shards);
  out.set("cut_elements", d.cut_elements);
  out.set("window_units", d.window_units);
  out.set("memory_limit_bytes", d.memory_limit_bytes);
  out.set("cost_model", d.cost_model);
  out.set("planner_time_limit_seconds", d.planner_time_limit_seconds);
  return out;
}

// The first option in which a stored plan differs from this run's, "" when it is this run's.
std::string foreign_option(const Json& stored, const Json& mine) {
  const Json* options = stored.find("options");
  if (options == nullptr) return "options";
  for (const auto& [key, value] : mine.as_object()) {
    const Json* other = options->find(key);
    if (other == nullptr || !(*other == value)) return key;
  }
  return "";
}

bool any_votes(const RuleTable& table) {
  for (size_t i = 0; i < table.rule_of.size(); ++i)
    if (is_voted(table, static_cast<int>(i))) return true;
  return false;
}

// What reads and writes the two plans of one run.
struct PlanFormat {
  std::vector<PlanTensor> mean, vote;
  int units = 0;
  bool votes = false;

  PlanFormat(const DistributionConfiguration& configuration, const Inventory& inventory, const RuleTable& table)
      : mean(plan_tensors(configuration, inventory, table, Agreement::mean)),
        vote(plan_tensors(configuration, inventory, table, Agreement::vote)),
        units(static_cast<int>(inventory.units().size())),
        votes(any_votes(table)) {}

  JobPlans read(const Json& json, const std::string& origin) const {
    Plan mean_plan = plan_from_json(json, mean, units, origin);
    const Json* stored_vote = json.find("vote");
    if (votes != (stored_vote != nullptr))
      throw CheckpointError(text(origin, votes ? " has no plan of the votes" : " has a plan of votes, and this run has none"));
    if (!votes) return mean_plan;
    return {std::move(mean_plan), plan_from_json(*stored_vote, vote, units, text(origin, " (vote)"))};
  }

  Json write(const Plan& mean_plan, const Plan& vote_plan) const {
    Json out = mean_plan.to_json(mean);
    if (votes) out.set("vote", vote_plan.to_json(vote));
    return out;
  }

  std::string report(const Plan& mean_plan, const Plan& vote_plan) const {
    std::string out = mean_plan.report(mean).to_text();
    // On one shard every worker updates everything that it votes on: nothing is decided.
    if (votes && vote_plan.shards > 1) out += text("of the votes, in every replica: ", vote_plan.report(vote).to_text());
    return out;
  }
};

}  // namespace

std::vector<PlanTensor> plan_tensors(const DistributionConfiguration& configuration, const Inventory& inventory, const RuleTable& table) {
  std::vector<PlanTensor> tensors;
  for (size_t i = 0; i < inventory.parameters().size(); ++i) {
    const ParameterDeclaration& parameter = inventory.parameters()[i];
    PlanTensor tensor;
    tensor.name = parameter.name;
    tensor.shape = parameter.shape;
    tensor.unit = parameter.unit;
    tensor.rule = table.rule_of[i];
    if (tensor.rule >= 0) {
      const UpdateRule& rule = *table.rules[static_cast<size_t>(tensor.rule)];
      tensor.whole = rule.cutting() == Cutting::whole && configuration.method != "gather";
      if (rule.cutting() == Cutting::whole) tensor.shape = update_shape(rule, parameter.name, parameter.shape, parameter.heads);
      tensor.cost = tensor.whole ? rule.flops(tensor.shape) : 0.0;
      tensor.state_bytes_per_element = 4 * static_cast<int>(rule.state().size());
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<PlanTensor> plan_tensors(const DistributionConfiguration& configuration, const Inventory& inventory, const RuleTable& table,
                                     Agreement agreement) {
  std::vector<PlanTensor> tensors = plan_tensors(configuration, inventory, table);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (is_voted(table, static_cast<int>(i)) != (agreement == Agreement::vote)) tensors[i].unit = -1;
  return tensors;
}

JobPlans make_run_plans(const DistributionConfiguration& configuration, const Inventory& inventory, const RuleTable& table,
                        const RankGrid& grid, const CostModel* costs) {
  const PlanFormat format(configuration, inventory, table);
  PlanOptions options = plan_options(configuration, grid);
  options.cost_model = costs;
  if (!format.votes) return make_plan(format.mean, format.units, options);
  PlanOptions within = plan_options(configuration, {1, grid.shards});
  within.cost_model = costs;
  Plan vote = make_plan(format.vote, format.units, within);
  if (options.memory_limit_bytes > 0) {
    // The limit holds for both together; what votes take is the same on every rank, up to how they are cut.
    const std::vector<int64_t> taken = vote.bytes(format.vote);
    options.memory_limit_bytes -= taken.empty() ? 0 : *std::max_element(taken.begin(), taken.end());
    if (options.memory_limit_bytes <= 0)
      throw ConfigError(text("distribution.memory_limit_bytes = ", configuration.memory_limit_bytes,
                             ": what one worker votes on takes all of it; raise it, or let more shards share a worker's tensors "
                             "(distribution.replicas)"));
  }
  return {make_plan(format.mean, format.units, options), std::move(vote)};
}

Json plan_json(const Plan& mean, const Plan& vote, const DistributionConfiguration& configuration, const Inventory& inventory,
               const RuleTable& table) {
  Json out = PlanFormat(configuration, inventory, table).write(mean, vote);
  out.set("options", options_json(configuration, {mean.replicas, mean.shards}));
  return out;
}

std::string describe_plans(const Plan& mean, const Plan& vote, const DistributionConfiguration& configuration, const Inventory& inventory,
                           const RuleTable& table) {
  return PlanFormat(configuration, inventory, table).report(mean, vote);
}

bool stored_plan_applies(const PlanRequest& request) {
  if (request.stored.empty()) return false;
  try {
    const Json stored = parse_json(request.stored, "plan.json");
    if (!foreign_option(stored, options_json(request.configuration, request.grid)).empty()) return false;
    PlanFormat(request.configuration, request.inventory, request.table).read(stored, "the checkpoint's plan.json");
    return true;
  } catch (const Error&) {
    return false;
  }
}

JobPlans agree_on_plans(Communicator& world, const PlanRequest& request) {
  const PlanFormat format(request.configuration, request.inventory, request.table);
  std::string mine;
  agreed(world, [&] {
    if (world.rank() != 0) return;
    if (!request.stored.empty()) {
      try {
        const Json stored = parse_json(request.stored, "plan.json");
        const std::string foreign = foreign_option(stored, options_json(request.configuration, request.grid));
        if (foreign.empty()) {
          const JobPlans plans = format.read(stored, "the checkpoint's plan.json");
          log_information(text("the checkpoint's ", format.report(plans.mean, plans.vote)));
          mine = request.stored;
          return;
        }
        log_information(
            text("plan: made anew, the checkpoint's has another \"", foreign, "\"; tensors may have new owners, the results are the same"));
      } catch (const Error& error) {
        log_warning(text("plan: made anew, the checkpoint's cannot be used: ", error.what()));
      }
    }
    const JobPlans plans = make_run_plans(request.configuration, request.inventory, request.table, request.grid, request.costs);
    log_information(format.report(plans.mean, plans.vote));
    for (const Plan* plan : {&plans.mean, &plans.vote})
      if (!plan->search.fallback.empty()) log_warning(text("plan: greedy instead of milp: ", plan->search.fallback));
    mine = plan_json(plans.mean, plans.vote, request.configuration, request.inventory, request.table).dump();
  });
  const std::string shared = world.broadcast_text(mine, 0);
  std::optional<JobPlans> plans;
  agreed(world, [&] { plans = format.read(parse_json(shared, "rank 0's plan"), "rank 0's plan"); });
  return std::move(*plans);
}

}  // namespace dmuon
