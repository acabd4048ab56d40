// The rows of update rules, and what each rule and Muon preset sets where the file says nothing.
#include <algorithm>

#include "config/bound_key.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

using Rows = std::vector<BoundKey<RuleConfiguration>>;

#define DMUON_RULE_KEY(path, field, constraint, description) \
  row<RuleConfiguration>(                                    \
      path, [](auto& r) -> auto& { return r.field; }, constraint, description)

const std::vector<std::string> vote_rules = {"sign_muon", "signum", "sign_adam", "lion"};

std::vector<std::string> all_preset_names() {
  std::vector<std::string> names = preset_names("muon");
  for (const std::string& name : preset_names("sign_muon"))
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  return names;
}

Rows common_rows() {
  return {
      DMUON_RULE_KEY(
          "match", match, any(),
          "Only in optimizer.overrides: full parameter name, * stands for any text; a pattern that matches nothing is an error."),
      DMUON_RULE_KEY("rule", rule, one_of(rule_names()), "Update rule."),
      DMUON_RULE_KEY(
          "preset", preset, only_for({"muon", "sign_muon"}, one_of(all_preset_names())),
          "Published implementation whose values hold for every key that is not written; sign_muon has custom and paper, muon the others."),
      DMUON_RULE_KEY("learning_rate", learning_rate, at_least(0), "Peak learning rate."),
      DMUON_RULE_KEY("weight_decay", weight_decay, at_least(0),
                     "Decoupled decay: the parameter is multiplied by 1 - learning rate x this, before the update; see decay."),
      DMUON_RULE_KEY("schedule.type", schedule.type, one_of({"constant", "linear", "cosine", "warmup_stable_decay"}),
                     "Shape of the learning rate after warm-up."),
      DMUON_RULE_KEY("schedule.warmup_steps", schedule.warmup_steps, between(0, 1e12), "Steps of linear rise to the peak."),
      DMUON_RULE_KEY("schedule.warmup_fraction", schedule.warmup_fraction, between(0, 1),
                     "Instead of warmup_steps: fraction of total_steps, so that it follows training.steps; 0: warmup_steps holds."),
      DMUON_RULE_KEY("schedule.total_steps", schedule.total_steps, between(0, 1e12), "Step at which the schedule ends; 0: training.steps."),
      DMUON_RULE_KEY("schedule.decay_steps", schedule.decay_steps, between(0, 1e12), "warmup_stable_decay: steps of decay before the end."),
      DMUON_RULE_KEY("schedule.decay_fraction", schedule.decay_fraction, between(0, 1),
                     "Instead of decay_steps: fraction of total_steps; 0: decay_steps holds."),
      DMUON_RULE_KEY("schedule.decay_shape", schedule.decay_shape, one_of({"linear", "one_minus_sqrt"}),
                     "warmup_stable_decay: shape of the decay."),
      DMUON_RULE_KEY("schedule.final_fraction", schedule.final_fraction, between(0, 1), "Learning rate at the end / peak."),
      DMUON_RULE_KEY("beta1", beta1, only_for({"adamw", "sign_adam", "lion"}, below_one()),
                     "Decay of the first moment; lion: weight of the momentum in the message."),
      DMUON_RULE_KEY("beta2", beta2, only_for({"adamw", "sign_adam", "lion"}, below_one()),
                     "Decay of the second moment; lion: decay of the momentum."),
      DMUON_RULE_KEY("epsilon", epsilon, only_for({"adamw", "sign_adam"}, at_least(0)), "Added to the root of the second moment."),
      DMUON_RULE_KEY("momentum", momentum, only_for({"sgd", "muon", "sign_muon", "signum"}, below_one()),
                     "Momentum coefficient; 0: none (signum: signSGD)."),
      DMUON_RULE_KEY("nesterov", nesterov, only_for({"sgd", "muon", "sign_muon", "signum"}, any()), "Nesterov form: looks one step ahead."),
      DMUON_RULE_KEY("dampening", dampening, only_for({"sgd"}, between(0, 1)), "The gradient enters momentum times 1 - this."),
  };
}

Rows muon_rows() {
  const auto muon = [](Constraint constraint) { return only_for({"muon", "sign_muon"}, std::move(constraint)); };
  return {
      DMUON_RULE_KEY("momentum_form", momentum_form, only_for({"muon", "sign_muon", "signum"}, one_of({"lerp", "sum"})),
                     "lerp: m = momentum m + (1 - momentum) g; sum: m = momentum m + g."),
      DMUON_RULE_KEY("momentum_warmup_steps", momentum_warmup_steps, muon(between(0, 1e12)),
                     "Steps in which momentum rises linearly from momentum_start; 0: constant."),
      DMUON_RULE_KEY("momentum_start", momentum_start, muon(below_one()), "Momentum at the first step of its warm-up."),
      DMUON_RULE_KEY("per_head", per_head, muon(any()),
                     "Whether the rows of each attention head in query, key and value weights are a matrix of their own (Muon Split)."),
      DMUON_RULE_KEY("coefficients", coefficients,
                     muon(one_of({"keller5", "you5", "polar_express_105", "polar_express_101", "polar_express_dion",
                                  "emerging_polar_express5", "cans5", "deepseek10", "cubic5", "track3_12"})),
                     "Newton-Schulz coefficient set."),
      DMUON_RULE_KEY("iterations", iterations, muon(between(0, 99)),
                     "Newton-Schulz iterations; 0: one per row of the set; more repeat the last row."),
      DMUON_RULE_KEY("iteration_form", iteration_form, muon(one_of({"auto", "direct", "gram"})),
                     "On the matrix itself, on its Gram matrix, or by the fixed rule of its shape."),
      DMUON_RULE_KEY("restarts", restarts, muon(between(1, 98)),
                     "Gram form: iterations after which it starts again from the matrix, ascending; empty: the set's own table."),
      DMUON_RULE_KEY("normalization_epsilon", normalization_epsilon, muon(at_least(0)), "Keeps the division by the norm finite."),
      DMUON_RULE_KEY("epsilon_mode", epsilon_mode, muon(one_of({"add", "clamp", "scaled"})),
                     "Divisor: norm + epsilon, max(norm, epsilon), or norm x normalization_safety + epsilon."),
      DMUON_RULE_KEY("normalization_safety", normalization_safety, muon(between(1, 2)), "Factor on the norm in epsilon_mode scaled."),
      DMUON_RULE_KEY("normalization", normalization, muon(one_of({"frobenius", "spectral"})),
                     "Norm that the iteration divides by: Frobenius, or the largest singular value by power iteration (times 1.01)."),
      DMUON_RULE_KEY("newton_schulz_dtype", newton_schulz_dtype, muon(one_of({"auto", "float32", "float16"})),
                     "Dtype of the products of Newton-Schulz; auto: float16 on a GPU when distribution.compute_dtype is bfloat16, "
                     "otherwise float32, and float32 for the spectral norm."),
      DMUON_RULE_KEY("scale", scale, only_for({"muon"}, one_of({"original", "match_rms", "spectral", "spectral_ratio", "none"})),
                     "Factor on the update of an r x c matrix: sqrt(max(1, r/c)), 0.2 sqrt(max(r, c)), sqrt(max(r, c)), sqrt(r/c), or 1."),
      DMUON_RULE_KEY("scale_factor", scale_factor, only_for({"muon"}, above(0)), "Further factor on the update."),
      DMUON_RULE_KEY("tune_numerics", tune_numerics, muon(any()),
                     "Whether the form (direct or Gram) may be chosen by measurement; the choice is kept with run and checkpoint."),
  };
}

Rows vote_rows() {
  return {
      DMUON_RULE_KEY("rate_shape", rate_shape, only_for(vote_rules, one_of({"none", "unit_gain", "mup"})),
                     "Factor on the learning rate of a tensor with rows of n elements: 1, 1/sqrt(n) or 1/n."),
      DMUON_RULE_KEY(
          "decay", decay, only_for(vote_rules, one_of({"decoupled", "coupled"})),
          "decoupled: as weight_decay says; coupled: weight_decay x parameter is added to each worker's gradient, before the sign."),
      DMUON_RULE_KEY("post_polar", post_polar, only_for({"sign_muon"}, any()),
                     "Whether the vote is orthogonalised and followed at the scale sqrt(max(1, r/c)); takes a learning rate of muon."),
  };
}
#undef DMUON_RULE_KEY

RuleConfiguration muon_preset(std::string_view preset) {
  RuleConfiguration r;
  r.rule = "muon";
  r.preset = std::string(preset);
  // custom: the canonical semantics; the norm is only clamped, so the update does not depend on the gradient's scale.
  r.learning_rate = 0.02;
  r.momentum = 0.95;
  r.nesterov = true;
  if (preset == "custom") return r;
  if (preset == "keller") {  // KellerJordan/Muon
    r.normalization_epsilon = 1e-7;
    r.epsilon_mode = "add";
  } else if (preset == "torch") {  // torch.optim.Muon
    r.learning_rate = 0.001;
    r.weight_decay = 0.1;
    r.normalization_epsilon = 1e-7;
  } else if (preset == "moonlight") {  // MoonshotAI/Moonlight
    r.learning_rate = 0.001;
    r.weight_decay = 0.1;
    r.momentum_form = "sum";
    r.normalization_epsilon = 1e-7;
    r.epsilon_mode = "add";
    r.scale = "match_rms";
  } else if (preset == "dion") {  // microsoft/dion, Muon
    r.learning_rate = 0.01;
    r.weight_decay = 0.01;
    r.momentum_form = "sum";
    r.nesterov = false;
    r.coefficients = "polar_express_dion";
    r.normalization_epsilon = 1e-6;
    r.epsilon_mode = "scaled";
    r.normalization_safety = 1.02;
    r.scale = "spectral_ratio";
  } else if (preset == "emerging") {  // NVIDIA Emerging-Optimizers
    r.learning_rate = 3e-4;
    r.weight_decay = 0.01;
    r.nesterov = false;
    r.coefficients = "you5";
    r.scale = "spectral";
  } else if (preset == "dmuon") {  // arXiv:2606.27153
    r.momentum_form = "sum";
    r.coefficients = "polar_express_105";
    r.normalization_epsilon = 1e-7;
    r.epsilon_mode = "add";
    r.scale = "match_rms";
  } else {
    throw ConfigError(text("no Muon preset \"", preset, "\"; there are ", join(preset_names("muon"), ", ")));
  }
  return r;
}

RuleConfiguration sign_muon_preset(std::string_view preset) {
  RuleConfiguration r;
  r.rule = "sign_muon";
  r.preset = std::string(preset);
  // The norm is not bounded from below, so the signs do not depend on the gradient's scale.
  r.normalization_epsilon = 0.0;
  if (preset == "custom") return r;
  if (preset != "paper") throw ConfigError(text("no Sign-Muon preset \"", preset, "\"; there are ", join(preset_names("sign_muon"), ", ")));
  r.decay = "coupled";  // arXiv:2605.16311, Algorithm 1: decay enters the gradient, one rate for all shapes
  return r;
}

}  // namespace

const std::vector<std::string>& rule_names() {
  static const std::vector<std::string> names = {"adamw", "sgd", "muon", "sign_muon", "signum", "sign_adam", "lion"};
  return names;
}

const std::vector<std::string>& preset_names(std::string_view rule) {
  static const std::vector<std::string> none;
  static const std::vector<std::string> muon = {"keller", "torch", "moonlight", "dion", "emerging", "dmuon", "custom"};
  static const std::vector<std::string> sign_muon = {"custom", "paper"};
  return rule == "muon" ? muon : rule == "sign_muon" ? sign_muon : none;
}

bool rule_votes(std::string_view rule) { return std::find(vote_rules.begin(), vote_rules.end(), rule) != vote_rules.end(); }

RuleConfiguration rule_defaults(std::string_view rule, std::string_view preset) {
  if (rule == "muon") return muon_preset(preset.empty() ? "keller" : preset);
  if (rule == "sign_muon") return sign_muon_preset(preset.empty() ? "custom" : preset);
  RuleConfiguration r;
  r.rule = std::string(rule);
  if (rule == "adamw") {
    r.weight_decay = 0.1;
  } else if (rule == "sgd") {
    r.learning_rate = 0.1;
  } else if (rule == "lion") {
    r.learning_rate = 3e-4;
    r.beta2 = 0.99;
  } else if (rule != "signum" && rule != "sign_adam") {
    throw ConfigError(text("no update rule \"", rule, "\"; there are ", join(rule_names(), ", ")));
  }
  return r;
}

const std::vector<BoundKey<RuleConfiguration>>& rule_rows() {
  static const Rows rows = [] {
    Rows all = common_rows();
    for (Rows part : {muon_rows(), vote_rows()})
      for (auto& each : part) all.push_back(std::move(each));
    return all;
  }();
  return rows;
}

}  // namespace dmuon
