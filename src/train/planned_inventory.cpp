#include "train/planned_inventory.h"

#include <algorithm>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "train/rules.h"
#include "train/run.h"

namespace dmuon {
namespace {

TensorRole role_of(ParameterRole role, bool whole) {
  if (whole) return TensorRole::matrix;
  if (role == ParameterRole::embedding) return TensorRole::embedding;
  return role == ParameterRole::head ? TensorRole::head : TensorRole::vector;
}

}  // namespace

ModelInventory planned_inventory(const Configuration& configuration, const std::vector<ModelFamily>& families) {
  const TokenData data = configuration.model.vocabulary_size > 0 ? TokenData{} : open_data(configuration, nullptr);
  const ModelPlan model = make_model(configuration, data, families);
  const Inventory& declared = model.model->inventory();
  const RunRules rules = make_rules(configuration.optimizer, declared);
  ModelInventory inventory;
  inventory.name = text(configuration.model.family, " of the configuration");
  inventory.source = "the model itself";
  for (const UnitDeclaration& unit : declared.units()) inventory.units.push_back(unit.name);
  for (size_t i = 0; i < declared.parameters().size(); ++i) {
    const ParameterDeclaration& parameter = declared.parameters()[i];
    const int rule = rules.table.rule_of[i];
    const bool whole = rule >= 0 && rules.table.rules[static_cast<size_t>(rule)]->cutting() == Cutting::whole;
    // A weight of more than two sizes is the matrix [out, everything else].
    const Shape apart = whole
                            ? update_shape(*rules.table.rules[static_cast<size_t>(rule)], parameter.name, parameter.shape, parameter.heads)
                            : parameter.shape;
    const Shape shape = apart == parameter.shape && whole && parameter.shape.rank() > 2
                            ? Shape{parameter.shape[0], parameter.shape.elements() / parameter.shape[0]}
                            : apart;
    inventory.tensors.push_back({parameter.name, shape, role_of(parameter.role, whole), parameter.unit});
  }
  return inventory;
}

SimulationOptions planned_options(const Configuration& configuration) {
  const DistributionConfiguration& distribution = configuration.distribution;
  if (!distribution.unit_stages.empty())
    throw ConfigError(
        "distribution.unit_stages: dmuon_plan predicts one stage for all units; set it to [] for the prediction, or ask "
        "dmuon_train --dry-run, which follows it");
  if (distribution.replicas > 0 && distribution.replicas != std::max<int64_t>(1, distribution.nodes))
    throw ConfigError(text("distribution.replicas: dmuon_plan predicts as many replicas as nodes (",
                           std::max<int64_t>(1, distribution.nodes), "), found ", distribution.replicas,
                           "; set it to 0 for the prediction, or ask dmuon_train --dry-run"));
  SimulationOptions options;
  options.nodes = static_cast<int>(distribution.nodes);
  options.planner = plan_strategy_from_name(distribution.planner);
  options.window_units = static_cast<int>(distribution.window_units);
  options.time_limit_seconds = distribution.planner_time_limit_seconds;
  options.stage = static_cast<int>(distribution.stage);
  options.look_ahead = static_cast<int>(distribution.look_ahead);
  options.memory_limit_bytes = distribution.memory_limit_bytes;
  options.cut_elements = distribution.cut_elements;
  return options;
}

}  // namespace dmuon
