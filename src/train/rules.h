// From the configuration's rule objects to update rules, schedules and the routing of every parameter.
#pragma once

#include <string>
#include <vector>

#include "dmuon/config/configuration.h"
#include "dmuon/nn/parameter.h"
#include "dmuon/optim/routing.h"
#include "dmuon/optim/schedule.h"
#include "dmuon/shard/sharded_model.h"

namespace dmuon {

// A rule as the run uses it: the update rule, its peak rate and its schedule.
struct ScheduledRule {
  double peak_learning_rate = 0.0;
  ScheduleOptions schedule;
};

struct RunRules {
  RuleTable table;                       // moved into the sharded model
  std::vector<ScheduledRule> schedules;  // by rule
  Routing routing;
  std::string routing_table;  // for people
  int matrix_rule = 0;
};

std::unique_ptr<UpdateRule> make_rule(const RuleConfiguration& configuration);

// The optimizer of a run on `backend`, every newton_schulz_dtype "auto" replaced by what it means there. ConfigError naming the
// key for "float16" on a backend that cannot. Routing and plans do not depend on it, so what only needs those may leave "auto".
OptimizerConfiguration with_newton_schulz_dtype(const Configuration& configuration, Backend& backend);

// ConfigError from the routing (an override that matches nothing, Muon for a vector).
RunRules make_rules(const OptimizerConfiguration& configuration, const Inventory& inventory);

// Rates of update `step` (the first is 1), one entry per rule.
std::vector<StepValues> step_values(const RunRules& rules, int64_t step, double gradient_scale);

// One description per rule with the parameters it updates, stored in checkpoints and compared on resume.
Json describe_rules(const RunRules& rules, const RuleTable& table, const Inventory& inventory);

}  // namespace dmuon
