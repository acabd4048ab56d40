#include "dmuon/config/configuration.h"

#include <algorithm>
#include <cmath>

#include "config/bound_key.h"
#include "config/reader.h"
#include "dmuon/core/error.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// Sets `value` at a dotted path below `tree`, making the objects on the way.
void set_path(Json& tree, const std::string& path, Json value) {
  const size_t dot = path.find('.');
  if (dot == std::string::npos) {
    tree.set(path, std::move(value));
    return;
  }
  const std::string section = path.substr(0, dot);
  if (!tree.find(section)) tree.set(section, Json::object());
  set_path(*tree.find(section), path.substr(dot + 1), std::move(value));
}

Json rule_json(const RuleConfiguration& rule, bool is_override) {
  Json out = Json::object();
  for (const auto& each : rule_rows())
    if (rule_key_applies(each.key, rule.rule) && (is_override || each.key.path != "match")) set_path(out, each.key.path, each.read(rule));
  return out;
}

Configuration from_tree(Json tree, std::string_view origin, const std::vector<std::string>& overrides, const ModelImport& import_model) {
  std::vector<std::string> override_errors;
  Findings findings(std::string(origin), apply_overrides(tree, overrides, override_errors));
  for (const auto& line : override_errors) findings.add(line);
  if (import_model) apply_import(tree, import_model, findings);
  Configuration configuration;
  read_tree(tree, configuration, findings);
  check_fields(configuration, findings);
  findings.throw_if_any();
  resolve(configuration);
  return configuration;
}

}  // namespace

Configuration load_configuration(const Path& path, const std::vector<std::string>& overrides, const ModelImport& import_model) {
  if (path.empty()) return from_tree(Json::object(), "command line", overrides, import_model);
  constexpr int64_t largest = 16 << 20;
  return parse_configuration(read_file(path, largest), path.string(), overrides, import_model);
}

Configuration parse_configuration(std::string_view json, std::string_view origin, const std::vector<std::string>& overrides,
                                  const ModelImport& import_model) {
  return from_tree(parse_json(json, origin), origin, overrides, import_model);
}

void resolve(ScheduleConfiguration& s, int64_t steps) {
  if (s.total_steps == 0) s.total_steps = steps;
  const auto steps_of = [&](double fraction) { return std::llround(fraction * static_cast<double>(s.total_steps)); };
  if (s.warmup_fraction > 0) s.warmup_steps = steps_of(s.warmup_fraction);
  if (s.decay_fraction > 0) s.decay_steps = std::min<int64_t>(steps_of(s.decay_fraction), s.total_steps - s.warmup_steps);
  s.warmup_fraction = s.decay_fraction = 0.0;
}

void resolve(Configuration& c) {
  if (c.output.empty()) c.output = text("runs/", c.name);
  resolve(c.optimizer.matrix.schedule, c.training.steps);
  resolve(c.optimizer.auxiliary.schedule, c.training.steps);
  for (auto& rule : c.optimizer.overrides) resolve(rule.schedule, c.training.steps);
}

Json to_json(const Configuration& c) {
  Json out = Json::object();
  auto next = configuration_rows().begin();
  for (const Key& key : configuration_keys()) {
    if (key.path == "optimizer.matrix") {
      set_path(out, key.path, rule_json(c.optimizer.matrix, false));
    } else if (key.path == "optimizer.auxiliary") {
      set_path(out, key.path, rule_json(c.optimizer.auxiliary, false));
    } else if (key.type == KeyType::rule_list) {
      Json list = Json::array();
      for (const auto& rule : c.optimizer.overrides) list.push_back(rule_json(rule, true));
      set_path(out, key.path, std::move(list));
    } else {
      const auto& row = *next++;
      if (family_key_applies(key, c.model.family)) set_path(out, key.path, row.read(c));
    }
  }
  return out;
}

uint64_t configuration_hash(const Configuration& configuration) {
  const std::string text_form = to_json(configuration).dump();
  return hash_bytes(text_form.data(), static_cast<int64_t>(text_form.size()));
}

}  // namespace dmuon
