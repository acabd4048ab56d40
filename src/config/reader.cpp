#include "config/reader.h"

#include <algorithm>
#include <cmath>

#include "config/bound_key.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

void Findings::add_value(const std::string& path, const Json& value, const std::string& complaint) {
  std::string shown = value.dump();
  if (shown.size() > 120) shown = shown.substr(0, 117) + "...";
  add(text(path, " = ", shown, overridden_.contains(path) ? " (from --set)" : "", ": ", complaint));
}

void Findings::throw_if_any() const {
  if (lines_.empty()) return;
  throw ConfigError(text(origin_, ": ", lines_.size(), lines_.size() == 1 ? " error" : " errors", "\n  ", join(lines_, "\n  ")));
}

std::string unknown_key(const std::string& path, const std::vector<std::string>& siblings) {
  const auto last = [](const std::string& p) { return p.substr(p.rfind('.') + 1); };
  std::vector<std::string> names;
  for (const auto& sibling : siblings) names.push_back(last(sibling));
  if (const std::string name = nearest(last(path), names); !name.empty())
    return text("unknown key; did you mean \"", siblings[static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin())],
                "\"?");
  for (const Key& key : configuration_keys())
    if (last(key.path) == last(path)) return text("unknown key; did you mean \"", key.path, "\"?");
  for (const Key& key : rule_keys())
    if (last(key.path) == last(path)) return text("unknown key; did you mean \"optimizer.matrix.", key.path, "\"?");
  return text("unknown key; valid here: ", join(names, ", "));
}

namespace {

// 1e3 and 1000.0 are integers too, as for the schema; exactly, or not at all.
Json as_whole(const Json& value) {
  if (!value.is_number() || value.is_integer()) return value;
  const double number = value.as_number();
  return std::trunc(number) == number && std::fabs(number) <= 0x1p53 ? Json(static_cast<int64_t>(number)) : value;
}

Json as_type(const Json& value, KeyType type) {
  if (type == KeyType::integer) return as_whole(value);
  if (type != KeyType::integer_list || !value.is_array()) return value;
  Json list = Json::array();
  for (const Json& element : value.as_array()) list.push_back(as_whole(element));
  return list;
}

// What is wrong with a single value; empty: nothing.
std::string complaint(const Key& key, const Json& value) {
  const auto wrong_type = [&] { return text("expected ", describe_allowed(key), ", found ", value.type_name()); };
  const auto outside = [&](const Json& number) {
    const double x = number.as_number();
    return x < key.minimum || x > key.maximum || (key.exclusive_minimum && x == key.minimum) || (key.exclusive_maximum && x == key.maximum);
  };
  switch (key.type) {
    case KeyType::boolean:
      return value.is_bool() ? "" : wrong_type();
    case KeyType::integer:
      if (value.is_number() && !value.is_integer()) return text("expected ", describe_allowed(key));
      if (!value.is_integer()) return wrong_type();
      return outside(value) ? text("expected ", describe_allowed(key)) : "";
    case KeyType::number:
      if (!value.is_number() || !std::isfinite(value.as_number())) return wrong_type();
      return outside(value) ? text("expected ", describe_allowed(key)) : "";
    case KeyType::string:
      return value.is_string() ? "" : wrong_type();
    case KeyType::enumeration: {
      if (!value.is_string()) return wrong_type();
      if (std::find(key.allowed.begin(), key.allowed.end(), value.as_string()) != key.allowed.end()) return "";
      const std::string close = nearest(value.as_string(), key.allowed);
      return text("expected ", describe_allowed(key), close.empty() ? "" : text("; did you mean \"", close, "\"?"));
    }
    case KeyType::string_list:
    case KeyType::integer_list:
      if (!value.is_array()) return wrong_type();
      for (const Json& element : value.as_array()) {
        if (key.type == KeyType::string_list && !element.is_string())
          return text("expected a list of strings, found ", element.type_name());
        if (key.type == KeyType::string_list) continue;
        if (!element.is_integer() || outside(element)) return text("expected ", describe_allowed(key), ", found ", element.dump());
      }
      return "";
    case KeyType::rule:
      return value.is_object() ? "" : wrong_type();
    case KeyType::rule_list:
      return value.is_array() ? "" : wrong_type();
  }
  return "";
}

// Full paths of what may stand directly inside the section `prefix` ("" or "model.").
std::vector<std::string> children(const std::vector<Key>& keys, const std::string& prefix) {
  std::vector<std::string> out;
  for (const Key& key : keys) {
    if (!key.path.starts_with(prefix)) continue;
    const std::string child = key.path.substr(0, key.path.find('.', prefix.size()));
    if (out.empty() || out.back() != child) out.push_back(child);
  }
  return out;
}

// Calls leaf(key, path, value) for every sound value below `object`; `base` is put before paths in messages.
template <class Leaf>
void walk(const Json& object, const std::vector<Key>& keys, const std::string& base, const std::string& prefix, Findings& findings,
          const Leaf& leaf) {
  for (const auto& [name, value] : object.as_object()) {
    const std::string path = prefix + name;
    const bool dotted = name.find('.') != std::string::npos;  // no name has dots: "model.layers" is not a path inside a file
    const auto key = std::find_if(keys.begin(), keys.end(), [&](const Key& k) { return k.path == path; });
    if (key != keys.end() && !dotted) {
      const Json typed = as_type(value, key->type);
      if (const std::string wrong = complaint(*key, typed); !wrong.empty())
        findings.add_value(base + path, value, wrong);
      else
        leaf(*key, base + path, typed);
      continue;
    }
    std::vector<std::string> siblings = children(keys, prefix);
    if (std::find(siblings.begin(), siblings.end(), path) == siblings.end() || dotted) {
      for (auto& sibling : siblings) sibling = base + sibling;
      findings.add(text(base, path, ": ", unknown_key(base + path, siblings)));
    } else if (!value.is_object()) {
      findings.add_value(base + path, value, text("expected an object, found ", value.type_name()));
    } else {
      walk(value, keys, base, path + ".", findings, leaf);
    }
  }
}

template <class Object>
void write(const std::vector<BoundKey<Object>>& rows, const std::string& path, const Json& value, Object& object) {
  std::find_if(rows.begin(), rows.end(), [&](const auto& each) { return each.key.path == path; })->write(object, value);
}

// Whether another rule has this preset, as when only the rule of an object was overridden.
bool belongs_elsewhere(const Key& preset_key, const std::string& preset) {
  return std::any_of(preset_key.rules.begin(), preset_key.rules.end(), [&](const std::string& rule) {
    const std::vector<std::string>& names = preset_names(rule);
    return std::find(names.begin(), names.end(), preset) != names.end();
  });
}

// `fallback`: the rule of an object that does not name one; empty: it has to.
RuleConfiguration read_rule(const Json& object, const std::string& path, std::string_view fallback, Findings& findings) {
  const auto named = [&](std::string_view key, const std::vector<std::string>& allowed, std::string_view otherwise) {
    const Json* value = object.find(key);
    const bool valid = value && value->is_string() && std::find(allowed.begin(), allowed.end(), value->as_string()) != allowed.end();
    return valid ? value->as_string() : std::string(otherwise);
  };
  const bool is_override = fallback.empty();
  const std::string rule = named("rule", rule_names(), is_override ? "adamw" : fallback);
  RuleConfiguration out = rule_defaults(rule, named("preset", preset_names(rule), ""));
  if (is_override)
    for (const char* required : {"match", "rule"})
      if (!object.find(required)) findings.add(text(path, ": missing key \"", required, "\", which every override needs"));
  const std::string remedy = text("to change the rule, replace the whole object: --set ", path, "='{\"rule\": \"", rule, "\"}'");
  walk(object, rule_keys(), path + ".", "", findings, [&](const Key& key, const std::string& full, const Json& value) {
    if (!rule_key_applies(key, rule))
      findings.add_value(
          full, value, text("rule \"", rule, "\" (", path, ".rule) has no such key; it belongs to ", join(key.rules, ", "), "; ", remedy));
    else if (key.path == "preset" && out.preset != value.as_string())
      findings.add_value(full, value,
                         text("rule \"", rule, "\" has the presets ", join(preset_names(rule), ", "),
                              belongs_elsewhere(key, value.as_string()) ? "; " + remedy : ""));
    else if (key.path == "match" && !is_override)
      findings.add_value(full, value, "only entries of optimizer.overrides match names");
    else if (key.path == "match" && value.as_string().empty())
      findings.add_value(full, value, "expected a pattern, such as \"*.bias\"");
    else
      write(rule_rows(), key.path, value, out);
  });
  return out;
}

}  // namespace

void read_tree(const Json& tree, Configuration& configuration, Findings& findings) {
  configuration.optimizer.matrix = rule_defaults("muon");
  configuration.optimizer.auxiliary = rule_defaults("adamw");
  if (!tree.is_object()) {
    findings.add(text("expected one JSON object, found ", tree.type_name()));
    return;
  }
  walk(tree, configuration_keys(), "", "", findings, [&](const Key& key, const std::string& path, const Json& value) {
    if (key.path == "optimizer.matrix") {
      configuration.optimizer.matrix = read_rule(value, path, "muon", findings);
    } else if (key.path == "optimizer.auxiliary") {
      configuration.optimizer.auxiliary = read_rule(value, path, "adamw", findings);
    } else if (key.type == KeyType::rule_list) {
      for (const Json& element : value.as_array()) {
        const std::string where = text(path, ".", configuration.optimizer.overrides.size());
        if (!element.is_object()) findings.add_value(where, element, text("expected a rule object, found ", element.type_name()));
        configuration.optimizer.overrides.push_back(element.is_object() ? read_rule(element, where, "", findings) : RuleConfiguration());
      }
    } else {
      write(configuration_rows(), key.path, value, configuration);
    }
  });
}

}  // namespace dmuon
