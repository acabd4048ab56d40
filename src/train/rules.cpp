#include "train/rules.h"

#include "dmuon/backend/device_updates.h"
#include "dmuon/config/key_table.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/lion.h"
#include "dmuon/optim/muon.h"
#include "dmuon/optim/sgd.h"
#include "dmuon/optim/sign_adam.h"
#include "dmuon/optim/sign_muon.h"
#include "dmuon/optim/signum.h"

namespace dmuon {
namespace {

// The fields of the momentum and of Newton-Schulz, which Muon and Sign-Muon share.
void set_orthogonal_momentum(OrthogonalMomentumOptions& options, const RuleConfiguration& c) {
  options.momentum_form = momentum_form_from_name(c.momentum_form);
  options.nesterov = c.nesterov;
  options.momentum = c.momentum;
  options.momentum_start = c.momentum_start;
  options.momentum_warmup_steps = c.momentum_warmup_steps;
  options.per_head = c.per_head;
  options.newton_schulz.coefficients = c.coefficients;
  options.newton_schulz.iterations = static_cast<int>(c.iterations);
  options.newton_schulz.form = iteration_form_from_name(c.iteration_form);
  options.newton_schulz.restarts.assign(c.restarts.begin(), c.restarts.end());
  options.newton_schulz.epsilon_mode = epsilon_mode_from_name(c.epsilon_mode);
  options.newton_schulz.epsilon = c.normalization_epsilon;
  options.newton_schulz.safety = c.normalization_safety;
  options.newton_schulz.normalization = normalization_from_name(c.normalization);
  options.newton_schulz.dtype = c.newton_schulz_dtype == "float16" ? DType::float16 : DType::float32;
}

std::unique_ptr<UpdateRule> make_muon_rule(const RuleConfiguration& c) {
  MuonOptions options;
  set_orthogonal_momentum(options, c);
  options.scale = scale_mode_from_name(c.scale);
  options.scale_factor = c.scale_factor;
  options.weight_decay = c.weight_decay;
  return make_muon(options);
}

template <class Options>
Options vote_options(const RuleConfiguration& c) {
  Options options;
  options.rate_shape = rate_shape_from_name(c.rate_shape);
  options.decay = decay_mode_from_name(c.decay);
  options.weight_decay = c.weight_decay;
  return options;
}

std::unique_ptr<UpdateRule> make_sign_muon_rule(const RuleConfiguration& c) {
  auto options = vote_options<SignMuonOptions>(c);
  set_orthogonal_momentum(options, c);
  options.post_polar = c.post_polar;
  return make_sign_muon(options);
}

std::unique_ptr<UpdateRule> make_signum_rule(const RuleConfiguration& c) {
  auto options = vote_options<SignumOptions>(c);
  options.momentum_form = momentum_form_from_name(c.momentum_form);
  options.nesterov = c.nesterov;
  options.momentum = c.momentum;
  return make_signum(options);
}

std::unique_ptr<UpdateRule> make_sign_adam_rule(const RuleConfiguration& c) {
  auto options = vote_options<SignAdamOptions>(c);
  options.beta1 = c.beta1, options.beta2 = c.beta2, options.epsilon = c.epsilon;
  return make_sign_adam(options);
}

std::unique_ptr<UpdateRule> make_lion_rule(const RuleConfiguration& c) {
  auto options = vote_options<LionOptions>(c);
  options.beta1 = c.beta1, options.beta2 = c.beta2;
  return make_lion(options);
}

ScheduleOptions schedule_options(const ScheduleConfiguration& c) {
  ScheduleOptions options;
  options.type = schedule_type_from_name(c.type);
  options.warmup_steps = c.warmup_steps;
  options.total_steps = c.total_steps;
  options.decay_steps = c.decay_steps;
  options.decay_shape = decay_shape_from_name(c.decay_shape);
  options.final_fraction = c.final_fraction;
  return options;
}

}  // namespace

std::unique_ptr<UpdateRule> make_rule(const RuleConfiguration& c) {
  if (c.rule == "muon") return make_muon_rule(c);
  if (c.rule == "sgd") return make_sgd({c.momentum, c.dampening, c.nesterov, c.weight_decay});
  if (c.rule == "adamw") return make_adamw({c.beta1, c.beta2, c.epsilon, c.weight_decay});
  if (c.rule == "sign_muon") return make_sign_muon_rule(c);
  if (c.rule == "signum") return make_signum_rule(c);
  if (c.rule == "sign_adam") return make_sign_adam_rule(c);
  if (c.rule == "lion") return make_lion_rule(c);
  throw ConfigError(text("optimizer: \"", c.rule, "\" is not one of ", join(rule_names(), ", ")));
}

OptimizerConfiguration with_newton_schulz_dtype(const Configuration& configuration, Backend& backend) {
  OptimizerConfiguration optimizer = configuration.optimizer;
  const bool can = device_updates(backend) != nullptr, narrow = configuration.distribution.compute_dtype == "bfloat16";
  const auto choose = [&](const std::string& path, RuleConfiguration& rule) {
    if (rule.rule != "muon" && rule.rule != "sign_muon") return;
    if (rule.newton_schulz_dtype == "auto")
      rule.newton_schulz_dtype = can && narrow && rule.normalization == "frobenius" ? "float16" : "float32";
    if (rule.newton_schulz_dtype == "float16" && !can)
      throw ConfigError(text(path, ".newton_schulz_dtype = \"float16\": device \"", configuration.device, "\" (", backend.name(),
                             ") has no products in float16; choose \"float32\", or \"auto\" for what the device can"));
  };
  choose("optimizer.matrix", optimizer.matrix);
  choose("optimizer.auxiliary", optimizer.auxiliary);
  for (size_t i = 0; i < optimizer.overrides.size(); ++i) choose(text("optimizer.overrides.", i), optimizer.overrides[i]);
  return optimizer;
}

RunRules make_rules(const OptimizerConfiguration& configuration, const Inventory& inventory) {
  RunRules rules;
  RoutingRequest request;
  std::vector<const RuleConfiguration*> all{&configuration.matrix, &configuration.auxiliary};
  for (const RuleConfiguration& override_rule : configuration.overrides) {
    request.overrides.push_back({override_rule.match, static_cast<int>(all.size())});
    all.push_back(&override_rule);
  }
  for (const RuleConfiguration* rule : all) {
    auto made = make_rule(*rule);
    request.rules.push_back({made->name(), made->cutting() == Cutting::whole, made->newton_schulz_calls(), made->per_head()});
    rules.table.rules.push_back(std::move(made));
    rules.schedules.push_back({rule->learning_rate, schedule_options(rule->schedule)});
  }
  request.matrix_rule = rules.matrix_rule = 0;
  request.auxiliary_rule = 1;
  std::vector<RoutedParameter> parameters;
  for (const ParameterDeclaration& parameter : inventory.parameters())
    parameters.push_back({parameter.name, parameter.shape, std::string(name_of(parameter.role)), parameter.heads});
  rules.routing = route(request, parameters);
  rules.routing_table = rules.routing.table(request, parameters);
  rules.table.rule_of = rules.routing.rule;
  return rules;
}

std::vector<StepValues> step_values(const RunRules& rules, int64_t step, double gradient_scale) {
  std::vector<StepValues> values;
  for (const ScheduledRule& rule : rules.schedules)
    values.push_back({step, scheduled_learning_rate(rule.schedule, rule.peak_learning_rate, step), gradient_scale});
  return values;
}

Json describe_rules(const RunRules& rules, const RuleTable& table, const Inventory& inventory) {
  Json out = Json::array();
  for (size_t rule = 0; rule < table.rules.size(); ++rule) {
    Json names = Json::array();
    for (size_t i = 0; i < inventory.parameters().size(); ++i)
      if (rules.routing.rule[i] == static_cast<int>(rule)) names.push_back(inventory.parameters()[i].name);
    if (names.as_array().empty()) continue;
    Json row = Json::object();
    row.set("rule", table.rules[rule]->name());
    row.set("description", table.rules[rule]->description());
    row.set("parameters", names);
    out.push_back(row);
  }
  return out;
}

}  // namespace dmuon
