// Rules between fields. Every message names both.
#include <algorithm>
#include <set>

#include "config/bound_key.h"
#include "config/reader.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// `as_written` may say steps or fractions of them.
void check_schedule(const std::string& path, const ScheduleConfiguration& as_written, int64_t steps, Findings& findings) {
  const auto one_of_two = [&](const char* part, int64_t count, double fraction) {
    if (count > 0 && fraction > 0)
      findings.add(text(path, ".", part, "_steps = ", count, " and ", path, ".", part, "_fraction = ", fraction, ": set one of them to 0"));
  };
  one_of_two("warmup", as_written.warmup_steps, as_written.warmup_fraction);
  one_of_two("decay", as_written.decay_steps, as_written.decay_fraction);
  if (as_written.warmup_fraction + as_written.decay_fraction > 1)
    findings.add(text(path, ".decay_fraction = ", as_written.decay_fraction, ": with ", path,
                      ".warmup_fraction = ", as_written.warmup_fraction, " more than the whole"));
  ScheduleConfiguration s = as_written;
  resolve(s, steps);
  const int64_t total = s.total_steps;
  const std::string total_text =
      as_written.total_steps > 0 ? text(path, ".total_steps = ", total) : text(path, ".total_steps (training.steps = ", total, ")");
  if (s.warmup_steps > total)
    findings.add(text(path, ".warmup_steps = ", s.warmup_steps, ": more than ", total_text, "; ", path,
                      ".warmup_fraction follows the number of steps"));
  if (s.type == "warmup_stable_decay" && s.warmup_steps <= total && s.decay_steps > total - s.warmup_steps)
    findings.add(text(path, ".decay_steps = ", s.decay_steps, ": with ", path, ".warmup_steps = ", s.warmup_steps, " more than ",
                      total_text, "; ", path, ".decay_fraction follows the number of steps"));
  const auto only_with_decay = [&](const char* key, auto value) {
    if (s.type != "warmup_stable_decay" && value > 0)
      findings.add(text(path, ".", key, " = ", value, ": only ", path, ".type = \"warmup_stable_decay\" has a decay of its own, found \"",
                        s.type, "\""));
  };
  only_with_decay("decay_steps", as_written.decay_steps);
  only_with_decay("decay_fraction", as_written.decay_fraction);
}

void check_rule(const std::string& path, const RuleConfiguration& r, int64_t steps, Findings& findings) {
  check_schedule(path + ".schedule", r.schedule, steps, findings);
  if (r.rule == "sgd" && r.nesterov && (r.momentum == 0.0 || r.dampening != 0.0))
    findings.add(text(path, ".nesterov = true: needs ", path, ".momentum above 0 (found ", r.momentum, ") and ", path,
                      ".dampening = 0 (found ", r.dampening, ")"));
  if (r.rule == "sign_muon" && r.post_polar && r.rate_shape != "none")
    findings.add(text(path, ".post_polar = true: its step is orthogonal and has the unit gain of its shape by itself, so leave ", path,
                      ".rate_shape = \"none\" (found \"", r.rate_shape, "\")"));
  if (r.rule != "muon" && r.rule != "sign_muon") return;
  if (r.iteration_form == "direct" && !r.restarts.empty())
    findings.add(text(path, ".restarts: the direct form (", path, ".iteration_form) has no restarts; leave the list empty"));
  if (std::adjacent_find(r.restarts.begin(), r.restarts.end(), [](int64_t a, int64_t b) { return a >= b; }) != r.restarts.end())
    findings.add(text(path, ".restarts: expected ascending iterations"));
  if (r.iterations > 0 && !r.restarts.empty() && r.restarts.back() >= r.iterations)
    findings.add(text(path, ".restarts: ", r.restarts.back(), " is not before the last of ", path, ".iterations = ", r.iterations));
  if (r.tune_numerics && (r.iteration_form != "auto" || !r.restarts.empty()))
    findings.add(text(path, ".tune_numerics = true: measures the form, so leave ", path, ".iteration_form = \"auto\" (found \"",
                      r.iteration_form, "\") and ", path, ".restarts empty"));
  if (r.newton_schulz_dtype == "float16" && r.normalization == "spectral")
    findings.add(text(path, ".newton_schulz_dtype = \"float16\": the spectral norm (", path,
                      ".normalization) is taken in float32; choose \"float32\" or \"auto\""));
  if (r.epsilon_mode != "scaled" && r.normalization_safety != 1.0)
    findings.add(text(path, ".normalization_safety = ", r.normalization_safety, ": only ", path,
                      ".epsilon_mode = \"scaled\" uses it, found \"", r.epsilon_mode, "\""));
}

// The stages that units may have; complains about entries that are not pattern=stage.
std::set<int64_t> check_stages(const DistributionConfiguration& d, Findings& findings) {
  std::set<int64_t> stages{d.stage};
  for (size_t i = 0; i < d.unit_stages.size(); ++i) {
    const std::string& entry = d.unit_stages[i];
    const size_t equals = entry.rfind('=');
    const std::string stage = equals == std::string::npos ? "" : entry.substr(equals + 1);
    if (equals == std::string::npos || equals == 0 || (stage != "1" && stage != "2" && stage != "3"))
      findings.add_value(text("distribution.unit_stages.", i), entry,
                         "expected pattern=stage with a pattern over unit names and stage 1, 2 or 3, such as \"blocks.*=3\"");
    else
      stages.insert(stage[0] - '0');
  }
  return stages;
}

void check_distribution(const DistributionConfiguration& d, Findings& findings) {
  const std::set<int64_t> stages = check_stages(d, findings);
  if (d.method == "replicated" && d.reduce == "every")
    findings.add("distribution.reduce = \"every\": method replicated keeps whole gradients and reduces once a step; use auto or last");
  if (d.reduce == "last" && *stages.rbegin() > 1)
    findings.add(text("distribution.reduce = \"last\": only stage 1 keeps whole gradients until the last micro-batch; found stage ",
                      *stages.rbegin(), " (distribution.stage, distribution.unit_stages)"));
  if (d.method != "owner" && *stages.rbegin() > 2)
    findings.add(text("distribution.method = \"", d.method,
                      "\": every rank updates whole parameters, which stage 3 is meant to avoid; found stage 3 (distribution.stage, "
                      "distribution.unit_stages); choose 1 or 2"));
  if (d.method == "gather" && d.compute_dtype != "float32")
    findings.add(
        text("distribution.method = \"gather\": updates in the values it computes with, so distribution.compute_dtype must be "
             "\"float32\", found \"",
             d.compute_dtype, "\""));
  if (d.nodes > 0 && d.replicas > 0 && d.replicas % d.nodes != 0 && d.nodes % d.replicas != 0)
    findings.add(text("distribution.replicas = ", d.replicas, ": neither a multiple nor a divisor of distribution.nodes = ", d.nodes,
                      ", so that a shard group would lie across nodes unevenly"));
}

// Keys of the planner that mean something only together with others.
void check_planner(const Configuration& c, Findings& findings) {
  const DistributionConfiguration& d = c.distribution;
  if (d.memory_limit_bytes > 0 && d.method != "owner")
    findings.add(text("distribution.memory_limit_bytes = ", d.memory_limit_bytes,
                      ": bounds what owners hold of their slots, found distribution.method = \"", d.method,
                      "\", which holds more; remove the limit or choose \"owner\""));
  // The other ranks wait for the plan: each program may overrun and be tried again.
  const double needed = 2.0 * d.planner_time_limit_seconds + 60.0;
  if (d.planner == "milp" && !(needed <= c.communication.start_timeout_seconds))
    findings.add(text("distribution.planner_time_limit_seconds = ", d.planner_time_limit_seconds,
                      ": the ranks that wait for the plan need communication.start_timeout_seconds of at least twice that and 60 s, ",
                      needed, ", found ", c.communication.start_timeout_seconds));
}

// What a vote on signs cannot be joined with, whatever the number of ranks.
void check_vote(const Configuration& c, Findings& findings) {
  if (!any_rule_votes(c.optimizer)) return;
  const DistributionConfiguration& d = c.distribution;
  if (d.method != "owner")
    findings.add(text("distribution.method = \"", d.method,
                      "\": a voting rule keeps one momentum for each worker and updates at its owner; choose \"owner\", which with "
                      "distribution.replicas = 0 makes every rank a worker"));
}

bool path_safe(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-' || c == '_';
  };
  return !name.empty() && name != "." && name != ".." && std::all_of(name.begin(), name.end(), allowed);
}

}  // namespace

bool any_rule_votes(const OptimizerConfiguration& optimizer) {
  return rule_votes(optimizer.matrix.rule) || rule_votes(optimizer.auxiliary.rule) ||
         std::any_of(optimizer.overrides.begin(), optimizer.overrides.end(), [](const auto& rule) { return rule_votes(rule.rule); });
}

std::vector<std::string> vote_notes(const Configuration& c) {
  std::vector<std::string> notes;
  if (!any_rule_votes(c.optimizer)) return notes;
  if (c.training.gradient_clip > 0.0)
    notes.push_back(text("training.gradient_clip = ", c.training.gradient_clip,
                         ": steps of voting rules do not depend on the gradient's scale; clipping only lowers the weight of this step's "
                         "gradient in their momentum (and acts as always on the other rules)"));
  const auto note_rule = [&](const std::string& path, const RuleConfiguration& rule) {
    if (!rule_votes(rule.rule)) return;
    if (rule.decay == "coupled" && rule.weight_decay > 0.0)
      notes.push_back(text(path,
                           ".decay = \"coupled\": decay inside the sign cannot shrink weights, it only turns the step, and 0.1 was "
                           "found to do harm; \"decoupled\" shrinks them"));
    if (rule.rate_shape == "none" && !rule.post_polar && rule.learning_rate > 0.01)
      notes.push_back(text(path, ".learning_rate = ", rule.learning_rate,
                           ": every element moves by this much in every step; 0.0003 to 0.004 "
                           "are usual"));
  };
  note_rule("optimizer.matrix", c.optimizer.matrix);
  note_rule("optimizer.auxiliary", c.optimizer.auxiliary);
  for (size_t i = 0; i < c.optimizer.overrides.size(); ++i) note_rule(text("optimizer.overrides.", i), c.optimizer.overrides[i]);
  return notes;
}

// Keys that the family lacks may only say what they say by default.
void check_model(const Configuration& c, Findings& findings) {
  const ModelConfiguration& m = c.model;
  for (const auto& row : configuration_rows())
    if (!family_key_applies(row.key, m.family) && row.read(c) != row.key.default_value)
      findings.add_value(row.key.path, row.read(c),
                         text("family \"", m.family, "\" (model.family) has no such key; it belongs to ", join(row.key.families, ", ")));
  if (m.family == "gpt2" || m.head_width == 0) {
    if (m.width % m.heads != 0)
      findings.add(text("model.width = ", m.width, ": not a multiple of model.heads = ", m.heads,
                        m.family == "gpt2" ? "" : "; write model.head_width to choose the width of a head"));
    else if (m.family == "qwen" && m.width / m.heads % 2 != 0)
      findings.add(text("model.heads = ", m.heads, ": heads of model.width / model.heads = ", m.width / m.heads,
                        " channels cannot take rotary positions, which turn pairs"));
  } else if (m.head_width % 2 != 0) {
    findings.add(text("model.head_width = ", m.head_width, ": rotary positions turn pairs of channels, so it must be even"));
  }
  if (m.key_value_heads > 0 && m.heads % m.key_value_heads != 0)
    findings.add(text("model.key_value_heads = ", m.key_value_heads, ": does not divide model.heads = ", m.heads));
}

void check_fields(const Configuration& c, Findings& findings) {
  if (!path_safe(c.name))
    findings.add_value("name", c.name, "expected letters, digits, dot, dash and underscore, because it names the run directory");
  check_model(c, findings);
  if (c.training.batch_tokens % c.model.context_length != 0) {
    const int64_t whole = std::max<int64_t>(1, c.training.batch_tokens / c.model.context_length) * c.model.context_length;
    findings.add(text("training.batch_tokens = ", c.training.batch_tokens,
                      ": not a multiple of model.context_length = ", c.model.context_length, "; ", whole, " would be"));
  }
  if (c.data.format == "text" && c.data.tokenizer == "none")
    findings.add("data.tokenizer = \"none\": data.format = \"text\" needs a tokenizer, character or byte");
  if ((c.data.format == "nanogpt" || c.data.format == "llmc") && c.model.vocabulary_size == 0)
    findings.add(
        text("model.vocabulary_size = 0: data.format = \"", c.data.format, "\" names no vocabulary; write its size, 50257 for GPT-2"));
  if (c.data.tokenizer == "byte" && c.data.format == "text" && c.model.vocabulary_size != 0 && c.model.vocabulary_size < 256)
    findings.add(text("model.vocabulary_size = ", c.model.vocabulary_size, ": data.tokenizer = \"byte\" has 256 tokens"));
  check_distribution(c.distribution, findings);
  check_planner(c, findings);
  const int64_t steps = c.training.steps;
  check_rule("optimizer.matrix", c.optimizer.matrix, steps, findings);
  check_rule("optimizer.auxiliary", c.optimizer.auxiliary, steps, findings);
  if (const std::string& rule = c.optimizer.auxiliary.rule; rule == "muon" || rule == "sign_muon")
    findings.add(text("optimizer.auxiliary.rule = \"", rule, "\": it updates matrices only, and the auxiliary rule also gets vectors; use ",
                      rule == "muon" ? "adamw or sgd" : "signum for one bit an element, or adamw"));
  check_vote(c, findings);
  for (size_t i = 0; i < c.optimizer.overrides.size(); ++i)
    check_rule(text("optimizer.overrides.", i), c.optimizer.overrides[i], steps, findings);
}

}  // namespace dmuon
