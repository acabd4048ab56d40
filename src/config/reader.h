// From a JSON tree to a Configuration: unknown keys, types, ranges. Errors are collected, not thrown.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "dmuon/config/configuration.h"
#include "dmuon/core/json.h"

namespace dmuon {

// Every finding about one configuration, each a line naming JSON path, value and what is allowed.
class Findings {
 public:
  Findings(std::string origin, std::set<std::string> overridden) : origin_(std::move(origin)), overridden_(std::move(overridden)) {}
  void add(const std::string& message) { lines_.push_back(message); }
  // A value at a path: "training.steps = -1 (from --set): <complaint>".
  void add_value(const std::string& path, const Json& value, const std::string& complaint);
  void throw_if_any() const;  // ConfigError with the origin and all lines

 private:
  std::string origin_;
  std::set<std::string> overridden_;  // paths whose value came from an override
  std::vector<std::string> lines_;
};

// Fills `configuration` (defaults where the tree says nothing); what is wrong goes to `findings`.
void read_tree(const Json& tree, Configuration& configuration, Findings& findings);

// Puts what model.from determines into the tree; contradictions go to `findings` (imported_model.cpp).
void apply_import(Json& tree, const ModelImport& import_model, Findings& findings);

// Cross-field rules of a configuration whose single values are right (checks.cpp).
void check_fields(const Configuration& configuration, Findings& findings);

// Puts "a.b.c=value" overrides into the tree and returns their paths; impossible ones go to `errors` (overrides.cpp).
std::set<std::string> apply_overrides(Json& tree, const std::vector<std::string>& overrides, std::vector<std::string>& errors);

// "unknown key; did you mean ...": the nearest of `siblings` (full paths), else a key of that name elsewhere.
std::string unknown_key(const std::string& path, const std::vector<std::string>& siblings);

}  // namespace dmuon
