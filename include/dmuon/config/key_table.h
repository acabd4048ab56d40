// The one table of configuration keys. Parsing, overrides, --print-config, the JSON Schema, help and the reference page
// all read it; a key exists exactly if it has a row here.
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/json.h"

namespace dmuon {

enum class KeyType {
  boolean,
  integer,
  number,
  string,
  enumeration,   // a string out of `allowed`
  string_list,   // JSON array of strings
  integer_list,  // JSON array of integers
  rule,          // an object with the keys of rule_keys()
  rule_list,     // JSON array of such objects, each with `match` and `rule`
};
std::string_view to_string(KeyType type);

struct Key {
  std::string path;  // dotted; relative to the rule object in rule_keys()
  KeyType type = KeyType::string;
  Json default_value;  // null where it follows from other keys (the description says how)
  // Bounds of numbers (of the elements of integer lists), inclusive unless said otherwise.
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  bool exclusive_minimum = false;
  bool exclusive_maximum = false;
  std::vector<std::string> allowed;   // enumerations
  std::vector<std::string> rules;     // rule keys: the update rules that use it; empty: every rule
  std::vector<std::string> families;  // keys of "model": the families that use it; empty: every family
  std::string description;            // one sentence, with the unit
};

// In the order in which they are printed and documented.
const std::vector<Key>& configuration_keys();
const std::vector<Key>& rule_keys();

const std::vector<std::string>& rule_names();
// The presets of a rule, its default first; empty for rules without.
const std::vector<std::string>& preset_names(std::string_view rule);
// Whether an object with this rule may hold the key.
bool rule_key_applies(const Key& key, std::string_view rule);
// Whether a model of this family has the key; keys outside "model" belong to all.
bool family_key_applies(const Key& key, std::string_view family);

// "an integer, at least 1", "one of auto, cpu": what a value must be.
std::string describe_allowed(const Key& key);

}  // namespace dmuon
