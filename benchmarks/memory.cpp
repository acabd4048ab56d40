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
  if (predicted > 0)
    out.set("measured_to_predicted", static_cast<double>(measured) / static_cast<double>(predicted));
  else
    out.set("measured_to_predicted", measured == 0 ? Json(1.0) : Json());
  return out;
}

// Of the rank that the dry run takes for the fullest.
Json::Array run_on(const Arguments& arguments, const std::string& config, World& job) {
  Communicator& world = job.communicator();
  const Configuration configuration = load_configuration(config);
  const RunGrid grid = make_run_grid(configuration.distribution, world.size(), count_nodes(world), any_rule_votes(configuration.optimizer));
  const DryRunReport predicted = dry_run(configuration, TokenData{}, models(), grid, arguments.threads);
  Training training(config, {}, arguments.threads, world);
  for (int i = 0; i < 3; ++i) training.step();
  MemoryStatistics mine = training.backend().allocator().statistics();
  const MemoryStatistics staging = job.memory();
  mine.categories[static_cast<size_t>(MemoryCategory::communication)].peak += staging.total.peak;
  mine.total.peak += staging.total.peak;
  std::vector<double> values;
  for (const auto& category : mine.categories) values.push_back(static_cast<double>(category.peak));
  values.push_back(static_cast<double>(mine.total.peak));
  values.push_back(static_cast<double>(peak_resident_bytes()));
  if (world.rank() != predicted.largest_rank) values.assign(values.size(), 0.0);
  values = world.all_reduce(values, ReduceOperation::sum);

  Json::Array rows;
  if (world.rank() != 0) return rows;
  const size_t categories = mine.categories.size();
  for (size_t i = 0; i < categories; ++i)
    rows.push_back(
        row(std::string(name_of(static_cast<MemoryCategory>(i))), predicted.memory.categories[i].peak, static_cast<int64_t>(values[i])));
  rows.push_back(row("all of them at once", predicted.memory.total.peak, static_cast<int64_t>(values[categories])));
  rows.push_back(row("resident, with program and libraries", predicted.predicted_bytes(), static_cast<int64_t>(values[categories + 1])));
  return rows;
}

Json::Array run(const Arguments& arguments) {
  const auto config = arguments.own.find("config");
  if (config == arguments.own.end()) throw ConfigError("memory needs --config FILE, e.g. configs/bench_gpt2_124m.json");
  return run_job([&](World& job) { return run_on(arguments, config->second, job); });
}

}  // namespace

Benchmark memory_benchmark() {
  return {"memory",
          "Memory a dry run predicts against what a run uses, alone or under mpirun",
          {{"config", "Configuration of the model and batch"}},
          run};
}

}  // namespace dmuon::bench
