#include <algorithm>
#include <cmath>
#include <functional>

#include "dmuon/core/text.h"
#include "dmuon/plan/simulation.h"

namespace dmuon {
namespace {

using Rows = std::vector<std::vector<std::string>>;

constexpr size_t most_rank_rows = 16;  // more ranks are shown as smallest, mean and largest

// Two decimals in every row: small values would be written with exponents.
std::string milliseconds(double seconds) { return seconds > 0.0 && seconds < 0.005e-3 ? "< 0.01" : format_number(seconds * 1e3, 2); }

// Rounded first, so that a difference of rounding errors reads as none.
std::string percent(double fraction) { return format_number(std::round(1000.0 * fraction) / 10.0, 1) + " %"; }

// Whole numbers without decimals: only means have them.
std::string count(double value) { return value == std::floor(value) ? format_count(static_cast<int64_t>(value)) : format_number(value, 1); }

std::vector<std::string> rank_cells(const std::string& label, const std::function<double(double (*)(const RankPrediction&))>& value) {
  const auto bytes = [&](double (*field)(const RankPrediction&)) { return format_bytes(static_cast<int64_t>(value(field))); };
  return {label,
          count(value([](const RankPrediction& r) { return static_cast<double>(r.matrices); })),
          milliseconds(value([](const RankPrediction& r) { return r.matrix_seconds; })),
          milliseconds(value([](const RankPrediction& r) { return r.elementwise_seconds; })),
          bytes([](const RankPrediction& r) { return static_cast<double>(r.state_bytes); }),
          bytes([](const RankPrediction& r) { return static_cast<double>(r.gradient_bytes); }),
          bytes([](const RankPrediction& r) { return static_cast<double>(r.parameter_bytes); }),
          bytes([](const RankPrediction& r) { return static_cast<double>(r.memory_bytes()); }),
          bytes([](const RankPrediction& r) { return static_cast<double>(r.intra_bytes); }),
          bytes([](const RankPrediction& r) { return static_cast<double>(r.inter_bytes); })};
}

std::string rank_table(const std::vector<RankPrediction>& ranks) {
  Rows rows{
      {"rank", "matrices", "matrix ms", "rest ms", "masters+state", "gradients", "parameters", "memory", "sent in node", "sent between"}};
  if (ranks.size() <= most_rank_rows) {
    for (size_t i = 0; i < ranks.size(); ++i) rows.push_back(rank_cells(std::to_string(i), [&](auto field) { return field(ranks[i]); }));
    return format_table(rows);
  }
  const auto fold = [&](auto combine) {
    return [&ranks, combine](double (*field)(const RankPrediction&)) {
      double result = field(ranks[0]);
      for (size_t i = 1; i < ranks.size(); ++i) result = combine(result, field(ranks[i]));
      return result;
    };
  };
  rows.push_back(rank_cells("smallest", fold([](double a, double b) { return std::min(a, b); })));
  const auto sum = fold([](double a, double b) { return a + b; });
  rows.push_back(rank_cells("mean", [&](auto field) { return sum(field) / static_cast<double>(ranks.size()); }));
  rows.push_back(rank_cells("largest", fold([](double a, double b) { return std::max(a, b); })));
  return format_table(rows);
}

std::string planner_table(const std::vector<PlannerPrediction>& planners) {
  Rows rows{{"planner", "makespan ms", "mean ms", "max/mean", "lower bound ms", "above bound", "note"}};
  for (const PlannerPrediction& planner : planners) {
    const double excess = planner.lower_bound_seconds > 0.0 ? planner.makespan_seconds / planner.lower_bound_seconds - 1.0 : 0.0;
    const double ratio = planner.mean_seconds > 0.0 ? planner.makespan_seconds / planner.mean_seconds : 1.0;
    rows.push_back({planner.planner, milliseconds(planner.makespan_seconds), milliseconds(planner.mean_seconds), format_number(ratio, 3),
                    milliseconds(planner.lower_bound_seconds), percent(excess),
                    planner.fallback.empty() ? "" : text("as ", planner.method, ": ", planner.fallback)});
  }
  return format_table(rows);
}

std::string method_table(const Simulation& simulation) {
  const bool steps = simulation.methods[0].step_seconds > 0.0;
  const double baseline = simulation.methods[0].step_seconds;
  Rows rows{{"method", "optimizer ms", "matrices", "rest", "collectives", "links ms", "sent in nodes", "sent between", "fullest rank"}};
  if (steps) rows[0].insert(rows[0].end(), {"step ms", "against AdamW"});
  for (const MethodPrediction& method : simulation.methods) {
    rows.push_back({method.method, milliseconds(method.optimizer_seconds()), milliseconds(method.matrix_seconds),
                    milliseconds(method.elementwise_seconds), milliseconds(method.gather_seconds), milliseconds(method.link_seconds),
                    format_bytes(method.intra_bytes), format_bytes(method.inter_bytes), format_bytes(method.memory_bytes)});
    if (steps)
      rows.back().insert(rows.back().end(), {format_number(method.step_seconds * 1e3, 1), percent(method.step_seconds / baseline - 1.0)});
  }
  return format_table(rows);
}

}  // namespace

std::string describe(const Simulation& simulation) {
  const SimulationOptions& options = simulation.options;
  return text("Model ", simulation.model, simulation.inferred ? " (inferred shapes)" : "", ": ", format_count(simulation.parameters),
              " parameters, ", format_count(simulation.matrices), " matrices with ", format_count(simulation.matrix_elements),
              "\nHardware ", simulation.hardware, "\nJob: ", options.ranks, options.ranks == 1 ? " rank" : " ranks", " on ", options.nodes,
              options.nodes == 1 ? " node" : " nodes", ", stage ", options.stage, ", planner ", simulation.planners[0].planner,
              "\n\nPlan\n", simulation.plan.to_text(), "\nRanks (owner)\n", rank_table(simulation.ranks), "\nPlanners (updates of matrices",
              options.memory_limit_bytes > 0 ? "; the memory bound holds for the first one" : "", ")\n", planner_table(simulation.planners),
              "\nPredicted, per step\n", method_table(simulation));
}

Json to_json(const Simulation& simulation) {
  const SimulationOptions& options = simulation.options;
  Json out = Json::object();
  out.set("model", simulation.model);
  out.set("inferred", simulation.inferred);
  out.set("hardware", simulation.hardware);
  out.set("parameters", simulation.parameters);
  out.set("matrices", simulation.matrices);
  out.set("matrix_elements", simulation.matrix_elements);
  out.set("ranks", options.ranks);
  out.set("nodes", options.nodes);
  out.set("stage", options.stage);
  out.set("window_units", options.window_units);
  Json planners = Json::array();
  for (const PlannerPrediction& planner : simulation.planners) {
    Json row = Json::object();
    row.set("planner", planner.planner);
    row.set("method", planner.method);
    row.set("fallback", planner.fallback);
    row.set("makespan_seconds", planner.makespan_seconds);
    row.set("mean_seconds", planner.mean_seconds);
    row.set("lower_bound_seconds", planner.lower_bound_seconds);
    planners.push_back(row);
  }
  out.set("planners", planners);
  out.set("plan", simulation.plan.to_json());
  Json methods = Json::array();
  for (const MethodPrediction& method : simulation.methods) {
    Json row = Json::object();
    row.set("method", method.method);
    row.set("optimizer_seconds", method.optimizer_seconds());
    row.set("matrix_seconds", method.matrix_seconds);
    row.set("elementwise_seconds", method.elementwise_seconds);
    row.set("gather_seconds", method.gather_seconds);
    row.set("link_seconds", method.link_seconds);
    row.set("step_seconds", method.step_seconds > 0.0 ? Json(method.step_seconds) : Json());
    row.set("intra_bytes", method.intra_bytes);
    row.set("inter_bytes", method.inter_bytes);
    row.set("memory_bytes", method.memory_bytes);
    methods.push_back(row);
  }
  out.set("methods", methods);
  Json ranks = Json::array();
  for (const RankPrediction& rank : simulation.ranks) {
    Json row = Json::object();
    row.set("matrices", rank.matrices);
    row.set("matrix_elements", rank.matrix_elements);
    row.set("elementwise_elements", rank.elementwise_elements);
    row.set("matrix_seconds", rank.matrix_seconds);
    row.set("elementwise_seconds", rank.elementwise_seconds);
    row.set("state_bytes", rank.state_bytes);
    row.set("gradient_bytes", rank.gradient_bytes);
    row.set("parameter_bytes", rank.parameter_bytes);
    row.set("intra_bytes", rank.intra_bytes);
    row.set("inter_bytes", rank.inter_bytes);
    ranks.push_back(row);
  }
  out.set("rank_predictions", ranks);
  return out;
}

std::string plot_data(const std::vector<Simulation>& simulations) {
  std::string out =
      "model\tranks\tnodes\tmethod\toptimizer_seconds\tstep_seconds\tmean_rank_seconds\tintra_bytes\tinter_bytes\tmemory_bytes\n";
  for (const Simulation& simulation : simulations)
    for (const MethodPrediction& method : simulation.methods) {
      double mean = method.optimizer_seconds();
      if (method.method == "owner") {
        mean = 0.0;
        for (const RankPrediction& rank : simulation.ranks) mean += rank.seconds() / static_cast<double>(simulation.ranks.size());
      }
      out += text(simulation.model, "\t", simulation.options.ranks, "\t", simulation.options.nodes, "\t", method.method, "\t",
                  method.optimizer_seconds(), "\t", method.step_seconds, "\t", mean, "\t", method.intra_bytes, "\t", method.inter_bytes,
                  "\t", method.memory_bytes, "\n");
    }
  return out;
}

}  // namespace dmuon
