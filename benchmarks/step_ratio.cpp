// What Muon costs a whole training step: (forward + backward + update) with Muon over the same with AdamW, forward and
// backward shared by both figures, on any number of ranks:
//   mpirun --oversubscribe -np 2 dmuon_bench step-ratio --config configs/bench_step.json --tokens 16384,65536
// Updates begin with the agreement on the gradient norm and end when every published parameter has arrived.
#include <algorithm>
#include <sstream>

#include "dmuon/core/text.h"
#include "support.h"
#include "training.h"

namespace dmuon::bench {
namespace {

void measure(const Arguments& arguments, Communicator& world, const std::string& config, const std::string& tokens, Json::Array& rows) {
  const std::vector<std::string> common{"training.batch_tokens=" + tokens, "tuning.enabled=true"};
  std::vector<std::string> adamw_keys = common;
  adamw_keys.push_back(R"(optimizer.matrix={"rule": "adamw"})");
  Training muon(config, common, arguments.threads, world), adamw(config, adamw_keys, arguments.threads, world);
  const auto largest = [&](double mine) { return world.all_reduce(std::span(&mine, 1), ReduceOperation::maximum)[0]; };
  muon.step(true);
  muon.update_only();
  adamw.update_only();
  std::vector<double> model, with_muon, with_adamw, ratios;
  for (int pair = 0; pair < arguments.pairs; ++pair) {
    model.push_back(largest(muon.step(true).model()));
    // Several, because an update is short beside a step.
    std::vector<double> muon_updates, adamw_updates;
    for (int i = 0; i < 5; ++i) {
      muon_updates.push_back(largest(muon.update_only().update));
      adamw_updates.push_back(largest(adamw.update_only().update));
    }
    with_muon.push_back(spread_of(muon_updates).median);
    with_adamw.push_back(spread_of(adamw_updates).median);
    ratios.push_back((model.back() + with_muon.back()) / (model.back() + with_adamw.back()));
  }
  const Spread ratio = spread_of(ratios);
  Json row = Json::object();
  row.set("ranks", world.size());
  row.set("tokens", muon.tokens_per_step());
  row.set("forward_and_backward_ms", 1e3 * spread_of(model).median);
  row.set("muon_update_ms", 1e3 * spread_of(with_muon).median);
  row.set("adamw_update_ms", 1e3 * spread_of(with_adamw).median);
  row.set("muon_step_to_adamw_step", ratio.median);
  row.set("lower_quartile", ratio.lower_quartile);
  row.set("upper_quartile", ratio.upper_quartile);
  if (world.rank() == 0) rows.push_back(std::move(row));
}

Json::Array run(const Arguments& arguments) {
  const auto config = arguments.own.find("config");
  if (config == arguments.own.end()) throw ConfigError("step-ratio needs --config FILE, e.g. configs/bench_step.json");
  const auto tokens = arguments.own.find("tokens");
  return run_job([&](World& job) {
    Json::Array rows;
    std::stringstream list(tokens == arguments.own.end() ? "16384,65536" : tokens->second);
    for (std::string each; std::getline(list, each, ',');) measure(arguments, job.communicator(), config->second, each, rows);
    return rows;
  });
}

}  // namespace

Benchmark step_ratio_benchmark() {
  return {"step-ratio",
          "A training step with Muon over one with AdamW; under mpirun",
          {{"config", "Configuration of the model, with Muon"}, {"tokens", "Tokens of a step, several separated by commas (16384,65536)"}},
          run};
}

}  // namespace dmuon::bench
