#include "dmuon/optim/routing.h"

#include <algorithm>
#include <array>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

constexpr std::array<std::string_view, 5> roles = {"matrix", "embedding", "head", "vector", "buffer"};

// A 4-D weight counts as a matrix only where the model says so.
bool is_matrix(const RoutedParameter& parameter) {
  return parameter.shape.elements() > 0 && (parameter.shape.rank() == 2 || (parameter.shape.rank() == 4 && parameter.role == "matrix"));
}

std::string percent(int64_t part, int64_t whole) {
  return whole == 0 ? "0.0 %" : text(format_number(100.0 * static_cast<double>(part) / static_cast<double>(whole), 1), " %");
}

// First override that matches; -1 for none. Marks it in `used`.
int find_override(const RoutingRequest& request, const std::string& name, std::vector<bool>& used) {
  for (size_t i = 0; i < request.overrides.size(); ++i)
    if (matches_pattern(request.overrides[i].pattern, name)) {
      used[i] = true;
      return static_cast<int>(i);
    }
  return -1;
}

// An override is used when it decides for a parameter; one whose matches were all taken by earlier ones is an error too.
void check_overrides(const RoutingRequest& request, std::span<const RoutedParameter> parameters, const std::vector<bool>& used) {
  std::vector<std::string> names;
  for (const RoutedParameter& parameter : parameters) names.push_back(parameter.name);
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i]) continue;
    const std::string& pattern = request.overrides[i].pattern;
    const bool shadowed =
        std::any_of(parameters.begin(), parameters.end(), [&](const auto& parameter) { return matches_pattern(pattern, parameter.name); });
    const std::string close = nearest(pattern, names);
    throw ConfigError(text(
        "optimizer.overrides[", i, "]: \"", pattern, "\" ",
        shadowed ? "decides for no parameter: everything it matches is a buffer or taken by an earlier override" : "matches no parameter",
        shadowed || close.empty() ? std::string() : text("; the nearest name is \"", close, "\"")));
  }
}

// per_head of a rule none of whose parameters has heads would silently do nothing.
void check_heads(const RoutingRequest& request, const Routing& routing) {
  for (size_t i = 0; i < request.rules.size(); ++i) {
    const Routing::Share& share = routing.share[i];
    if (!request.rules[i].per_head || share.tensors == 0 || share.matrices > share.tensors) continue;
    const int rule = static_cast<int>(i);
    const auto named =
        std::find_if(request.overrides.begin(), request.overrides.end(), [&](const auto& each) { return each.rule == rule; });
    throw ConfigError(text(named != request.overrides.end()
                               ? text("optimizer.overrides[", named - request.overrides.begin(), "] (\"", named->pattern, "\")")
                               : std::string(rule == request.matrix_rule ? "optimizer.matrix" : "optimizer.auxiliary"),
                           ": per_head is true, but none of its ", share.tensors,
                           " parameters is divided into attention heads, as query, key and value projections are; set it to false"));
  }
}

}  // namespace

bool matches_pattern(std::string_view pattern, std::string_view name) {
  // Greedy with one point of return: the last * takes one more character whenever the rest does not fit.
  size_t p = 0, n = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

Routing route(const RoutingRequest& request, std::span<const RoutedParameter> parameters) {
  const int rules = static_cast<int>(request.rules.size());
  const auto check_rule = [&](int rule, const std::string& what) {
    if (rule < 0 || rule >= rules) throw ConfigError(text(what, " names rule ", rule, " of ", rules));
  };
  check_rule(request.matrix_rule, "optimizer.matrix");
  check_rule(request.auxiliary_rule, "optimizer.auxiliary");
  for (size_t i = 0; i < request.overrides.size(); ++i) check_rule(request.overrides[i].rule, text("optimizer.overrides[", i, "]"));

  Routing routing;
  routing.share.resize(request.rules.size());
  std::vector<bool> used(request.overrides.size(), false);
  int64_t elements = 0;
  for (const RoutedParameter& parameter : parameters) {
    if (std::find(roles.begin(), roles.end(), parameter.role) == roles.end())
      throw ConfigError(text(parameter.name, " has the unknown role \"", parameter.role, "\""));
    if (parameter.role == "buffer") {
      routing.rule.push_back(-1);
      continue;
    }
    const int override_index = find_override(request, parameter.name, used);
    const int rule = override_index >= 0          ? request.overrides[static_cast<size_t>(override_index)].rule
                     : parameter.role == "matrix" ? request.matrix_rule
                                                  : request.auxiliary_rule;
    const RoutedRule& chosen = request.rules[static_cast<size_t>(rule)];
    if (chosen.matrices_only && !is_matrix(parameter))
      throw ConfigError(text(parameter.name, " has shape ", parameter.shape.to_string(), " and role ", parameter.role, ", but ",
                             override_index >= 0 ? text("optimizer.overrides[", override_index, "] (\"",
                                                        request.overrides[static_cast<size_t>(override_index)].pattern, "\")")
                                                 : std::string(parameter.role == "matrix" ? "optimizer.matrix" : "optimizer.auxiliary"),
                             " gives it ", chosen.name, ", which takes matrices only; route it to an element-wise rule"));
    routing.rule.push_back(rule);
    Routing::Share& share = routing.share[static_cast<size_t>(rule)];
    const int64_t matrices = chosen.per_head ? parameter.heads : 1;
    ++share.tensors;
    share.matrices += matrices;
    share.elements += parameter.shape.elements();
    elements += parameter.shape.elements();
    routing.newton_schulz_calls += matrices * chosen.newton_schulz_calls;
  }
  check_heads(request, routing);
  check_overrides(request, parameters, used);

  // Several rules may be Muon with different hyper-parameters; what counts is the share of all of them.
  const RoutedRule& matrix_rule = request.rules[static_cast<size_t>(request.matrix_rule)];
  int64_t on_matrix = 0;
  for (size_t i = 0; i < request.rules.size(); ++i)
    if (request.rules[i].matrices_only) on_matrix += routing.share[i].elements;
  if (matrix_rule.matrices_only && 2 * on_matrix < elements)
    routing.warnings.push_back(text("only ", percent(on_matrix, elements), " of all elements are on ", matrix_rule.name,
                                    "; the routing table shows where the others went"));
  return routing;
}

std::string Routing::table(const RoutingRequest& request, std::span<const RoutedParameter> parameters) const {
  // Parameters of one rule, role and shape share a row, in order of first appearance.
  struct Row {
    int rule;
    const RoutedParameter* first;
    Share share;
  };
  const auto heads_of = [&](int of, const RoutedParameter& parameter) {
    return of >= 0 && request.rules[static_cast<size_t>(of)].per_head ? parameter.heads : 1;
  };
  std::vector<Row> rows;
  int64_t elements = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const RoutedParameter& parameter = parameters[i];
    auto row = std::find_if(rows.begin(), rows.end(), [&](const Row& each) {
      return each.rule == rule[i] && each.first->role == parameter.role && each.first->shape == parameter.shape &&
             heads_of(rule[i], *each.first) == heads_of(rule[i], parameter);
    });
    if (row == rows.end()) row = rows.insert(rows.end(), {rule[i], &parameter, {}});
    ++row->share.tensors;
    row->share.elements += parameter.shape.elements();
    if (rule[i] >= 0) elements += parameter.shape.elements();
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const Row& a, const Row& b) { return (a.rule < 0 ? 1 << 30 : a.rule) < (b.rule < 0 ? 1 << 30 : b.rule); });
  std::vector<std::vector<std::string>> cells = {{"rule", "role", "shape", "tensors", "elements", "share", "first"}};
  const auto shape_of = [&](const Row& row) {
    const int64_t heads = heads_of(row.rule, *row.first);
    return heads > 1 ? text(heads, " heads of ", row.first->shape.to_string()) : row.first->shape.to_string();
  };
  for (const Row& row : rows)
    cells.push_back({row.rule < 0 ? "none" : request.rules[static_cast<size_t>(row.rule)].name, row.first->role, shape_of(row),
                     format_count(row.share.tensors), format_count(row.share.elements),
                     row.rule < 0 ? "" : percent(row.share.elements, elements), row.first->name});
  for (size_t i = 0; i < share.size(); ++i)
    cells.push_back({request.rules[i].name, "all", "", format_count(share[i].tensors), format_count(share[i].elements),
                     percent(share[i].elements, elements), ""});
  return text(format_table(cells), "Newton-Schulz calls per step: ", newton_schulz_calls, "\n");
}

}  // namespace dmuon
