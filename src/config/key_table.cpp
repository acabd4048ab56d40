#include "dmuon/config/key_table.h"

#include <algorithm>
#include <cmath>

#include "config/bound_key.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

Key rule_key(std::string path, KeyType type, std::string description) {
  Key key;
  key.path = std::move(path);
  key.type = type;
  if (type == KeyType::rule_list) key.default_value = Json::array();
  key.description = std::move(description);
  return key;
}

// 4,096; 1e12 for large powers of ten; others as short as they read back.
std::string bound_text(double bound) {
  if (std::floor(bound) != bound) return text(bound);
  const int64_t whole = static_cast<int64_t>(bound);
  const std::string digits = std::to_string(whole);
  const size_t zeros = digits.size() - digits.find_last_not_of('0') - 1;
  return zeros >= 6 ? text(digits.substr(0, digits.size() - zeros), "e", zeros) : format_count(whole);
}

}  // namespace

std::string_view to_string(KeyType type) {
  static constexpr std::string_view names[] = {"boolean",         "integer",          "number",      "string",       "choice",
                                               "list of strings", "list of integers", "rule object", "list of rules"};
  return names[static_cast<size_t>(type)];
}

const std::vector<Key>& configuration_keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all;
    for (const auto& each : configuration_rows()) {
      if (each.key.path == "distribution.method") {  // the order of sections: training, optimizer, distribution
        all.push_back(rule_key("optimizer.matrix", KeyType::rule, "Rule of hidden matrices; muon by default."));
        all.push_back(rule_key("optimizer.auxiliary", KeyType::rule,
                               "Rule of everything else (embeddings, head, tied pair, vectors); adamw by default."));
        all.push_back(rule_key("optimizer.overrides", KeyType::rule_list,
                               "Rules for parameters by name, before the two above; the first that matches holds."));
      }
      all.push_back(each.key);
    }
    return all;
  }();
  return keys;
}

const std::vector<Key>& rule_keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all;
    for (const auto& each : rule_rows()) all.push_back(each.key);
    return all;
  }();
  return keys;
}

bool rule_key_applies(const Key& key, std::string_view rule) {
  return key.rules.empty() || std::find(key.rules.begin(), key.rules.end(), rule) != key.rules.end();
}

bool family_key_applies(const Key& key, std::string_view family) {
  return key.families.empty() || std::find(key.families.begin(), key.families.end(), family) != key.families.end();
}

std::string describe_allowed(const Key& key) {
  static constexpr std::string_view nouns[] = {"true or false",      "an integer",    "a number",
                                               "a string",           "one of ",       "a list of strings",
                                               "a list of integers", "a rule object", "a list of rule objects"};
  std::string out(nouns[static_cast<size_t>(key.type)]);
  if (key.type == KeyType::enumeration) return out + join(key.allowed, ", ");
  const bool low = std::isfinite(key.minimum), high = std::isfinite(key.maximum);
  if (low && high && key.minimum == key.maximum) return text(out, " equal to ", bound_text(key.minimum));
  if (low && high && key.exclusive_minimum) return text(out, " above ", bound_text(key.minimum), " and at most ", bound_text(key.maximum));
  if (low && high && key.exclusive_maximum)
    return text(out, " of at least ", bound_text(key.minimum), " and below ", bound_text(key.maximum));
  if (low && high) return text(out, " from ", bound_text(key.minimum), " to ", bound_text(key.maximum));
  if (low) return text(out, key.exclusive_minimum ? " above " : " of at least ", bound_text(key.minimum));
  return out;
}

}  // namespace dmuon
