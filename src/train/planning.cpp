#include "train/planning.h"

#include <algorithm>

#include "dmuon/core/error.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "train/agreement.h"

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
      tensor.cost = tensor.whole ? rule.flops(parameter.shape) : 0.0;
      tensor.state_bytes_per_element = 4 * static_cast<int>(rule.state().size());
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Plan make_run_plan(const DistributionConfiguration& configuration, const Inventory& inventory, const RuleTable& table, const RankGrid& grid,
                   const CostModel* costs) {
  PlanOptions options = plan_options(configuration, grid);
  options.cost_model = costs;
  return make_plan(plan_tensors(configuration, inventory, table), static_cast<int>(inventory.units().size()), options);
}

Json plan_json(const Plan& plan, const DistributionConfiguration& configuration, const Inventory& inventory, const RuleTable& table) {
  Json out = plan.to_json(plan_tensors(configuration, inventory, table));
  out.set("options", options_json(configuration, {plan.replicas, plan.shards}));
  return out;
}

bool stored_plan_applies(const PlanRequest& request) {
  if (request.stored.empty()) return false;
  try {
    const Json stored = parse_json(request.stored, "plan.json");
    if (!foreign_option(stored, options_json(request.configuration, request.grid)).empty()) return false;
    plan_from_json(stored, plan_tensors(request.configuration, request.inventory, request.table),
                   static_cast<int>(request.inventory.units().size()), "the checkpoint's plan.json");
    return true;
  } catch (const Error&) {
    return false;
  }
}

Plan agree_on_plan(Communicator& world, const PlanRequest& request) {
  const std::vector<PlanTensor> tensors = plan_tensors(request.configuration, request.inventory, request.table);
  const int units = static_cast<int>(request.inventory.units().size());
  std::string mine;
  agreed(world, [&] {
    if (world.rank() != 0) return;
    if (!request.stored.empty()) {
      try {
        const Json stored = parse_json(request.stored, "plan.json");
        const std::string foreign = foreign_option(stored, options_json(request.configuration, request.grid));
        if (foreign.empty()) {
          const Plan plan = plan_from_json(stored, tensors, units, "the checkpoint's plan.json");
          log_information(text("the checkpoint's ", plan.report(tensors).to_text()));
          mine = request.stored;
          return;
        }
        log_information(
            text("plan: made anew, the checkpoint's has another \"", foreign, "\"; tensors may have new owners, the results are the same"));
      } catch (const Error& error) {
        log_warning(text("plan: made anew, the checkpoint's cannot be used: ", error.what()));
      }
    }
    const Plan plan = make_run_plan(request.configuration, request.inventory, request.table, request.grid, request.costs);
    log_information(plan.report(tensors).to_text());
    if (!plan.search.fallback.empty()) log_warning(text("plan: greedy instead of milp: ", plan.search.fallback));
    mine = plan_json(plan, request.configuration, request.inventory, request.table).dump();
  });
  const std::string shared = world.broadcast_text(mine, 0);
  Plan plan;
  agreed(world, [&] { plan = plan_from_json(parse_json(shared, "rank 0's plan"), tensors, units, "rank 0's plan"); });
  return plan;
}

}  // namespace dmuon
