// What a dry run predicts against what a run then uses, by category.
#include <algorithm>

#include "dmuon/core/text.h"
#include "support.h"
#include "train/dry_run.h"
#include "training.h"

namespace dmuon::bench {
namespace {

Json row(const std::string& category, int64_t predicted, int64_t measured) {
  Json out = Json::object();
  out.set("category", category);
  out.set("predicted_bytes", predicted);
  out.set("measured_bytes", measured);
  out.set("measured_to_predicted", predicted > 0 ? static_cast<double>(measured) / static_cast<double>(predicted) : 1.0);
  return out;
}

Json::Array run(const Arguments& arguments) {
  const auto config = arguments.own.find("config");
  if (config == arguments.own.end()) throw ConfigError("memory needs --config FILE, e.g. configs/bench_gpt2_124m.json");
  const DryRunReport predicted = dry_run(load_configuration(config->second), TokenData{}, models(), 1, arguments.threads);
  Training training(config->second, arguments.threads);
  for (int i = 0; i < 3; ++i) training.step();
  const MemoryStatistics measured = training.backend().allocator().statistics();
  Json::Array rows;
  for (size_t i = 0; i < measured.categories.size(); ++i)
    rows.push_back(
        row(std::string(name_of(static_cast<MemoryCategory>(i))), predicted.memory.categories[i].peak, measured.categories[i].peak));
  rows.push_back(row("all of them at once", predicted.memory.total.peak, measured.total.peak));
  rows.push_back(row("resident, with program and libraries", predicted.predicted_bytes(), peak_resident_bytes()));
  return rows;
}

}  // namespace

Benchmark memory_benchmark() {
  return {"memory", "Memory a dry run predicts against what a run uses", {{"config", "Configuration of the model and batch"}}, run};
}

}  // namespace dmuon::bench
