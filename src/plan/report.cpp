#include "plan/report.h"

#include <algorithm>
#include <numeric>

#include "dmuon/core/text.h"

namespace dmuon {
namespace {

template <class T>
double largest_over_mean(const std::vector<T>& values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  if (!(sum > 0.0)) return 1.0;
  return static_cast<double>(*std::max_element(values.begin(), values.end())) * static_cast<double>(values.size()) / sum;
}

std::string cost_text(double cost, bool measured) {
  return measured ? text(format_number(cost * 1e3, 3), " ms") : text(format_number(cost * 1e-9, 3), " GFLOP");
}

}  // namespace

PlanReport Plan::report(const std::vector<PlanTensor>& tensors) const {
  PlanReport report;
  report.search = search;
  if (report.search.method.empty()) report.search.method = strategy;  // owners were given
  if (!(report.search.lower_bound > 0.0)) report.search.lower_bound = lower_bound;
  report.strategy = strategy;
  report.slots = slots;
  report.replicas = replicas;
  report.shards = shards;
  report.windows = windows();
  report.batches = static_cast<int64_t>(batches.size());
  for (const PlanBatch& batch : batches) {
    report.matrices += static_cast<int64_t>(batch.tensors.size());
    report.largest_batch = std::max(report.largest_batch, static_cast<int64_t>(batch.tensors.size()));
  }
  report.makespan = makespan();
  report.gap = lower_bound > 0.0 ? report.makespan / lower_bound - 1.0 : 0.0;
  report.loads = loads;
  report.bytes = bytes(tensors);
  report.load_ratio = largest_over_mean(report.loads);
  report.bytes_ratio = largest_over_mean(report.bytes);
  for (const UnitLayout& unit : units) {
    int64_t largest = 0;
    for (size_t slot = 0; slot + 1 < unit.cuts.size(); ++slot) largest = std::max(largest, unit.cuts[slot + 1] - unit.cuts[slot]);
    report.publish_balance.push_back(
        unit.elements > 0 ? static_cast<double>(slots) * static_cast<double>(largest) / static_cast<double>(unit.elements) : 1.0);
  }
  return report;
}

std::string PlanReport::to_text() const {
  const auto cost = [&](double value) { return cost_text(value, search.measured); };
  std::string out =
      text("plan by ", search.method, ": ", matrices, matrices == 1 ? " matrix in " : " matrices in ", batches,
           batches == 1 ? " batch (largest " : " batches (largest ", largest_batch, ") on ", slots, slots == 1 ? " slot" : " slots");
  if (replicas > 1) out += text(" (", replicas, " replicas x ", shards, " shards)");
  out += text(", ", windows, windows == 1 ? " window" : " windows", ", costs ", search.measured ? "measured" : "counted in FLOPs", "\n");
  if (!search.fallback.empty())
    out += text("  owners are greedy's: ", search.fallback, "\n");
  else if (strategy == name_of(PlanStrategy::milp) && search.method == name_of(PlanStrategy::greedy))
    out += "  owners are greedy's: within 0.05 % of the lower bound, so no program was needed\n";
  out += text("  makespan ", cost(makespan), ", lower bound ", cost(search.lower_bound), ", gap ", format_number(gap * 100.0, 2), " %");
  if (search.greedy_makespan > 0.0) out += text("; greedy ", cost(search.greedy_makespan));
  if (search.milp_makespan > 0.0) out += text(", milp ", cost(search.milp_makespan));
  if (search.variables > 0) out += text(" (programs of up to ", search.variables, " variables, ", format_number(search.seconds, 1), " s)");
  out += text("\n  largest / mean: load ", format_number(load_ratio, 3), ", bytes ", format_number(bytes_ratio, 3));
  if (!bytes.empty()) out += text(" (fullest slot ", format_bytes(*std::max_element(bytes.begin(), bytes.end())), ")");
  if (!publish_balance.empty()) {
    const auto worst = std::max_element(publish_balance.begin(), publish_balance.end());
    const double mean = std::accumulate(publish_balance.begin(), publish_balance.end(), 0.0) / static_cast<double>(publish_balance.size());
    out += text("\n  publish balance (slots x largest slot / unit): mean ", format_number(mean, 2), ", worst ", format_number(*worst, 2),
                " in unit ", worst - publish_balance.begin());
  }
  return out + "\n";
}

Json PlanReport::to_json() const {
  const auto array_of = [](const auto& values) {
    Json array = Json::array();
    for (const auto& value : values) array.push_back(value);
    return array;
  };
  Json out = Json::object();
  out.set("strategy", strategy);
  out.set("search", search_json(search));
  out.set("cost_unit", search.measured ? "seconds" : "FLOPs");
  out.set("slots", slots);
  out.set("replicas", replicas);
  out.set("shards", shards);
  out.set("windows", windows);
  out.set("matrices", matrices);
  out.set("batches", batches);
  out.set("largest_batch", largest_batch);
  out.set("makespan", makespan);
  out.set("lower_bound", search.lower_bound);
  out.set("gap", gap);
  out.set("load_ratio", load_ratio);
  out.set("bytes_ratio", bytes_ratio);
  out.set("loads", array_of(loads));
  out.set("bytes", array_of(bytes));
  out.set("publish_balance", array_of(publish_balance));
  return out;
}

}  // namespace dmuon
