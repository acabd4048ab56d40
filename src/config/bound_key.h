// A row of the key table tied to the member it stands for.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dmuon/config/configuration.h"
#include "dmuon/config/key_table.h"

namespace dmuon {

template <class Object>
struct BoundKey {
  Key key;
  std::function<Json(const Object&)> read;
  std::function<void(Object&, const Json&)> write;  // the value has passed check_value
};

// Rows without the members of type `rule` and `rule_list`, which the reader walks into itself.
const std::vector<BoundKey<Configuration>>& configuration_rows();
const std::vector<BoundKey<RuleConfiguration>>& rule_rows();

inline Json json_of(bool value) { return value; }
inline Json json_of(int64_t value) { return value; }
inline Json json_of(double value) { return value; }
inline Json json_of(const std::string& value) { return value; }
template <class Element>
Json json_of(const std::vector<Element>& values) {
  Json out = Json::array();
  for (const Element& value : values) out.push_back(json_of(value));
  return out;
}

inline void assign(bool& target, const Json& value) { target = value.as_bool(); }
inline void assign(int64_t& target, const Json& value) { target = value.as_integer(); }
inline void assign(double& target, const Json& value) { target = value.as_number(); }
inline void assign(std::string& target, const Json& value) { target = value.as_string(); }
template <class Element>
void assign(std::vector<Element>& target, const Json& value) {
  target.clear();
  for (const Json& element : value.as_array()) assign(target.emplace_back(), element);
}

// What a row says about values, to be combined with its path, member and description.
struct Constraint {
  double minimum = -std::numeric_limits<double>::infinity();
  double maximum = std::numeric_limits<double>::infinity();
  bool exclusive_minimum = false;
  bool exclusive_maximum = false;
  std::vector<std::string> allowed = {};
  std::vector<std::string> rules = {};
  std::vector<std::string> families = {};
};
inline Constraint any() { return {}; }
inline Constraint at_least(double minimum) { return {.minimum = minimum}; }
inline Constraint above(double minimum) { return {.minimum = minimum, .exclusive_minimum = true}; }
inline Constraint above_up_to(double minimum, double maximum) {
  return {.minimum = minimum, .maximum = maximum, .exclusive_minimum = true};
}
inline Constraint between(double minimum, double maximum) { return {.minimum = minimum, .maximum = maximum}; }
// A share that never reaches 1: momentum, dropout.
inline Constraint below_one() { return {.minimum = 0, .maximum = 1, .exclusive_maximum = true}; }
inline Constraint one_of(std::vector<std::string> allowed) { return {.allowed = std::move(allowed)}; }
inline Constraint only_for(std::vector<std::string> rules, Constraint constraint) {
  constraint.rules = std::move(rules);
  return constraint;
}

inline Constraint of_family(std::string family, Constraint constraint) {
  constraint.families = {std::move(family)};
  return constraint;
}

// `member` is [](auto& object) -> auto& { return object.section.field; }. The default is the member's initialiser.
template <class Object, class Member>
BoundKey<Object> row(std::string path, Member member, const Constraint& constraint, std::string description) {
  using Value = std::remove_cvref_t<decltype(member(std::declval<Object&>()))>;
  BoundKey<Object> out;
  out.key.path = std::move(path);
  if constexpr (std::is_same_v<Value, bool>) out.key.type = KeyType::boolean;
  if constexpr (std::is_same_v<Value, int64_t>) out.key.type = KeyType::integer;
  if constexpr (std::is_same_v<Value, double>) out.key.type = KeyType::number;
  if constexpr (std::is_same_v<Value, std::string>) out.key.type = constraint.allowed.empty() ? KeyType::string : KeyType::enumeration;
  if constexpr (std::is_same_v<Value, std::vector<std::string>>) out.key.type = KeyType::string_list;
  if constexpr (std::is_same_v<Value, std::vector<int64_t>>) out.key.type = KeyType::integer_list;
  out.key.minimum = constraint.minimum;
  out.key.maximum = constraint.maximum;
  out.key.exclusive_minimum = constraint.exclusive_minimum;
  out.key.exclusive_maximum = constraint.exclusive_maximum;
  out.key.allowed = constraint.allowed;
  out.key.rules = constraint.rules;
  out.key.families = constraint.families;
  out.key.description = std::move(description);
  out.read = [member](const Object& object) { return json_of(member(object)); };
  out.write = [member](Object& object, const Json& value) { assign(member(object), value); };
  out.key.default_value = out.read(Object{});
  return out;
}

}  // namespace dmuon
