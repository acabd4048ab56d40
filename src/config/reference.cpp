#include "dmuon/config/reference.h"

#include <algorithm>
#include <cmath>

#include "config/bound_key.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

std::string section_of(const Key& key) {
  const size_t dot = key.path.find('.');
  return dot == std::string::npos ? "" : key.path.substr(0, dot);
}

// Markdown cells may not hold bars or line breaks.
std::string cell(std::string value) {
  for (size_t at = 0; (at = value.find('|', at)) != std::string::npos; at += 2) value.insert(at, "\\");
  return value;
}

std::string code(const Json& value) { return "`" + value.dump() + "`"; }

// Rule keys differ by rule: "`0.001` (adamw), `0.1` (sgd), preset's (muon)".
std::string rule_default(const BoundKey<RuleConfiguration>& row) {
  if (row.key.path == "match") return "required there";
  if (row.key.path == "rule") return "`\"muon\"` (matrix), `\"adamw\"` (auxiliary)";
  if (row.key.path == "preset") return "`\"keller\"` (muon), `\"custom\"` (sign_muon)";
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;  // value, rules
  for (const auto& rule : rule_names()) {
    if (!rule_key_applies(row.key, rule)) continue;
    bool same = true;
    const Json value = row.read(rule_defaults(rule));
    for (const auto& preset : preset_names(rule)) same = same && row.read(rule_defaults(rule, preset)) == value;
    const std::string shown = same ? code(value) : "the preset's";
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == shown; });
    if (group == groups.end())
      groups.push_back({shown, {rule}});
    else
      group->second.push_back(rule);
  }
  if (groups.size() == 1) return groups[0].first;
  std::vector<std::string> parts;
  for (const auto& [value, rules] : groups) parts.push_back(text(value, " (", join(rules, ", "), ")"));
  return join(parts, ", ");
}

std::string preset_table(std::string_view rule) {
  std::string out = "| key |", line_below = "|---|";
  for (const auto& preset : preset_names(rule)) {
    out += text(" ", preset, " |");
    line_below += "---|";
  }
  out += "\n" + line_below + "\n";
  for (const auto& row : rule_rows()) {
    if (!rule_key_applies(row.key, rule) || row.key.path == "preset" || row.key.path == "match" || row.key.path == "rule") continue;
    std::string line = text("| `", row.key.path, "` |");
    bool differs = false;
    for (const auto& preset : preset_names(rule)) {
      const Json value = row.read(rule_defaults(rule, preset));
      differs = differs || value != row.read(rule_defaults(rule));
      line += text(" ", value.is_string() ? value.as_string() : value.dump(), " |");
    }
    if (differs) out += line + "\n";
  }
  return out;
}

// Makes `schema` that of an object with no properties yet.
void start_object(Json& schema) {
  schema.set("type", "object");
  schema.set("additionalProperties", false);
  schema.set("properties", Json::object());
}

void set_schema_property(Json& object, const std::string& path, Json value) {
  const size_t dot = path.find('.');
  Json& properties = *object.find("properties");
  if (dot == std::string::npos) {
    properties.set(path, std::move(value));
    return;
  }
  const std::string section = path.substr(0, dot);
  if (!properties.find(section)) {
    Json child = Json::object();
    start_object(child);
    properties.set(section, std::move(child));
  }
  set_schema_property(*properties.find(section), path.substr(dot + 1), std::move(value));
}

Json bound(double value) {
  if (std::floor(value) == value && std::fabs(value) < 9.3e15) return static_cast<int64_t>(value);
  return value;
}

void set_bounds(Json& schema, const Key& key) {
  if (std::isfinite(key.minimum)) schema.set(key.exclusive_minimum ? "exclusiveMinimum" : "minimum", bound(key.minimum));
  if (std::isfinite(key.maximum)) schema.set(key.exclusive_maximum ? "exclusiveMaximum" : "maximum", bound(key.maximum));
}

Json key_schema(const Key& key) {
  Json schema = Json::object();
  Json items = Json::object();
  schema.set("description", key.description);
  switch (key.type) {
    case KeyType::boolean:
      schema.set("type", "boolean");
      break;
    case KeyType::integer:
    case KeyType::number:
      schema.set("type", key.type == KeyType::integer ? "integer" : "number");
      set_bounds(schema, key);
      break;
    case KeyType::string:
      schema.set("type", "string");
      break;
    case KeyType::enumeration:
      schema.set("enum", json_of(key.allowed));
      break;
    case KeyType::string_list:
    case KeyType::integer_list:
      items.set("type", key.type == KeyType::string_list ? "string" : "integer");
      set_bounds(items, key);
      schema.set("type", "array");
      schema.set("items", std::move(items));
      break;
    case KeyType::rule:
      schema.set("$ref", "#/$defs/rule");
      break;
    case KeyType::rule_list: {
      Json parts = Json::array(), reference = Json::object(), required = Json::object();
      reference.set("$ref", "#/$defs/rule");
      required.set("required", json_of(std::vector<std::string>{"match", "rule"}));
      parts.push_back(std::move(reference));
      parts.push_back(std::move(required));
      items.set("allOf", std::move(parts));
      schema.set("type", "array");
      schema.set("items", std::move(items));
      break;
    }
  }
  return schema;
}

std::string one_line_help(const std::string& path, const std::string& default_text, const Key& key) {
  return text("  ", path, default_text.empty() ? "" : " = " + default_text, "\n      ", key.description, " (", describe_allowed(key),
              ")\n");
}

}  // namespace

std::string configuration_markdown() {
  std::string out =
      "# Configuration reference\n\n"
      "<!-- Generated from the key table: dmuon_config markdown > docs/configuration.md -->\n\n"
      "A run is described by one JSON file, given as `dmuon_train --config FILE`. The file is strict: an unknown key, a wrong type or a "
      "value\n"
      "outside its range stops the program before any work, with all errors at once, the nearest valid key and what is allowed.\n"
      "Every key has a default, so a file holds only what differs.\n\n"
      "- `--set key=value` overrides one key and may be repeated; later ones win. The key is the dotted path of the tables below. The "
      "value is\n"
      "  JSON if it parses as JSON, else plain text: `--set training.steps=200 --set data.train=corpus.txt --set model.bias=false`.\n"
      "  Whole objects and lists are JSON: `--set optimizer.matrix='{\"rule\": \"adamw\"}'`; elements of lists are reached by index:\n"
      "  `--set optimizer.overrides.0.learning_rate=0.1`.\n"
      "- An integer may be written `1000`, `1000.0` or `1e3`.\n"
      "- `--print-config` prints the resolved file: every key that has a meaning in this run. The run directory keeps it as well.\n"
      "- `dmuon_config check FILE` checks a file; `docs/config.schema.json` is a JSON Schema for editors.\n";
  std::string section = "-";
  for (const Key& key : configuration_keys()) {
    if (section_of(key) != section) {
      section = section_of(key);
      out += text("\n## ", section.empty() ? "Run" : "`" + section + "`", "\n\n| key | default | value | meaning |\n|---|---|---|---|\n");
    }
    const std::string shown = key.path == "output"             ? "`\"runs/<name>\"`"
                              : key.path == "optimizer.matrix" ? "`{\"rule\": \"muon\"}`"
                              : key.type == KeyType::rule      ? "`{\"rule\": \"adamw\"}`"
                                                               : code(key.default_value);
    out += text("| `", key.path, "` | ", cell(shown), " | ", cell(describe_allowed(key)), " | ", cell(key.description),
                key.families.empty() ? "" : text(" Family ", join(key.families, ", "), " only."), " |\n");
  }
  out +=
      "\n## Rule objects\n\n"
      "`optimizer.matrix`, `optimizer.auxiliary` and every entry of `optimizer.overrides` hold one update rule. Unwritten keys take the "
      "default of\n"
      "that rule, for `muon` and `sign_muon` that of the preset; an entry of `overrides` inherits nothing from the other two. A key that "
      "the rule does not "
      "use is an\n"
      "error.\n\n| key | rules | default | value | meaning |\n|---|---|---|---|---|\n";
  for (const auto& row : rule_rows())
    out += text("| `", row.key.path, "` | ", row.key.rules.empty() ? "all" : join(row.key.rules, ", "), " | ", cell(rule_default(row)),
                " | ", cell(describe_allowed(row.key)), " | ", cell(row.key.description), " |\n");
  out += "\n## Muon presets\n\nWhat each preset gives where presets differ.\n\n" + preset_table("muon");
  out += "\n## Sign-Muon presets\n\n" + preset_table("sign_muon");
  return out;
}

Json configuration_schema() {
  Json schema = Json::object();
  schema.set("$schema", "https://json-schema.org/draft/2020-12/schema");
  schema.set("title", "dmuon run configuration");
  start_object(schema);
  for (const Key& key : configuration_keys()) {
    Json property = key_schema(key);
    if (!key.default_value.is_null()) property.set("default", key.default_value);
    set_schema_property(schema, key.path, std::move(property));
  }
  Json rule = Json::object(), definitions = Json::object();
  start_object(rule);
  for (const Key& key : rule_keys()) set_schema_property(rule, key.path, key_schema(key));
  definitions.set("rule", std::move(rule));
  schema.set("$defs", std::move(definitions));
  return schema;
}

std::string configuration_help() {
  std::string out = "Configuration keys, for the file of --config and for --set key=value:\n";
  for (const Key& key : configuration_keys())
    out += one_line_help(key.path, key.default_value.is_null() ? "" : key.default_value.dump(), key);
  out += "\nKeys of a rule object (optimizer.matrix, optimizer.auxiliary, entries of optimizer.overrides):\n";
  for (const Key& key : rule_keys()) out += one_line_help(key.path, "", key);
  return out;
}

}  // namespace dmuon
