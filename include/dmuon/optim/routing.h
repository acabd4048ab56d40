// Which update rule every parameter gets: by role, after overrides by name. Decided once, printed, and checked each step
// against the number of Newton-Schulz calls.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dmuon/core/shape.h"

namespace dmuon {

struct RoutedParameter {
  std::string name;
  Shape shape;
  std::string role;   // "matrix", "embedding", "head", "vector", "buffer"
  int64_t heads = 1;  // blocks of rows that a rule may take apart
};

// One rule of the configuration. Two entries may have the same name and differ in hyper-parameters.
struct RoutedRule {
  std::string name;             // "muon", "adamw"
  bool matrices_only = false;   // takes 2-D tensors, and 4-D ones of role matrix
  int newton_schulz_calls = 0;  // per matrix and step
  bool per_head = false;        // takes every head as a matrix of its own
};

struct RoutingOverride {
  std::string pattern;  // whole name; * stands for any text, also an empty one
  int rule = 0;         // index into the rules
};

struct RoutingRequest {
  std::vector<RoutedRule> rules;
  int matrix_rule = 0;                     // of role matrix
  int auxiliary_rule = 0;                  // of embedding, head and vector
  std::vector<RoutingOverride> overrides;  // the first that matches wins
};

struct Routing {
  struct Share {
    int64_t tensors = 0;
    int64_t matrices = 0;  // tensors, counted once per head where the rule takes heads apart
    int64_t elements = 0;
  };
  std::vector<int> rule;            // per parameter: index into the rules; -1 for a buffer, which has none
  std::vector<Share> share;         // per rule
  int64_t newton_schulz_calls = 0;  // expected per step
  std::vector<std::string> warnings;

  // Text: one row per rule and shape, then one per rule with its share of all elements.
  std::string table(const RoutingRequest& request, std::span<const RoutedParameter> parameters) const;
};

// ConfigError naming the override and the nearest parameter when a pattern matches nothing, and naming parameter, shape
// and override when a rule for matrices gets a tensor that is none; for a per_head rule whose parameters have no heads; also for an
// override of a buffer by its full name. Warns when the matrix rule takes matrices only and less than half of all elements are on such
// rules.
Routing route(const RoutingRequest& request, std::span<const RoutedParameter> parameters);

// * matches any text; everything else matches itself.
bool matches_pattern(std::string_view pattern, std::string_view name);

}  // namespace dmuon
