// A whole training step against the best matrix product of the same backend in the same run. Model FLOPs are 6 per
// parameter that enters a product and token, plus attention at half (ModelFacts); the optimizer is left out of the
// fraction and shown beside it. Products and steps alternate; a step is compared with the better of the two sets of
// products around it.
#include <algorithm>

#include "dmuon/core/text.h"
#include "support.h"
#include "training.h"

namespace dmuon::bench {
namespace {

Json row(const std::string& item, int64_t calls, double seconds, double share, double gflops, const Spread& fraction) {
  Json out = Json::object();
  out.set("item", item);
  out.set("calls", calls);
  out.set("milliseconds", seconds * 1e3);
  out.set("share_of_step", share);
  out.set("gflops", gflops);
  out.set("fraction_of_gemm", fraction.median);
  out.set("lower_quartile", fraction.lower_quartile);
  out.set("upper_quartile", fraction.upper_quartile);
  return out;
}

Json::Array run(const Arguments& arguments) {
  const auto config = arguments.own.find("config");
  if (config == arguments.own.end()) throw ConfigError("train-step needs --config FILE, e.g. configs/bench_gpt2_124m.json");
  Training training(config->second, overrides_of(arguments), arguments.threads);
  const double flops = training.model_flops();
  training.step();
  training.step();
  std::vector<double> fractions, model, forward, backward, update, products{training.best_product()};
  for (int pair = 0; pair < arguments.pairs; ++pair) {
    const Training::Seconds seconds = training.step();
    products.push_back(training.best_product());
    fractions.push_back(flops / seconds.model() / std::max(products[products.size() - 2], products.back()));
    model.push_back(seconds.model());
    forward.push_back(seconds.forward);
    backward.push_back(seconds.backward);
    update.push_back(seconds.update);
  }
  const double model_seconds = spread_of(model).median, update_seconds = spread_of(update).median;
  const double step_seconds = model_seconds + update_seconds;
  const double gemm = spread_of(products).median;
  Json::Array rows;
  rows.push_back(row("best product", static_cast<int64_t>(products.size()), 0.0, 0.0, gemm / 1e9, {1.0, 1.0, 1.0}));
  rows.push_back(
      row("forward and backward", 1, model_seconds, model_seconds / step_seconds, flops / model_seconds / 1e9, spread_of(fractions)));
  rows.push_back(row("  forward", 1, spread_of(forward).median, spread_of(forward).median / step_seconds, 0.0, {}));
  rows.push_back(row("  backward", 1, spread_of(backward).median, spread_of(backward).median / step_seconds, 0.0, {}));
  rows.push_back(row("norm and update", 1, update_seconds, update_seconds / step_seconds, 0.0, {}));

  training.backend().reset_costs();
  training.backend().profile(true);
  const double profiled = training.step().step();
  training.backend().profile(false);
  std::vector<std::pair<std::string, KernelCost>> kernels;
  for (const auto& [name, cost] : training.backend().costs()) kernels.emplace_back(name, cost);
  std::sort(kernels.begin(), kernels.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  for (const auto& [name, cost] : kernels) {
    const double rate = cost.seconds > 0 ? cost.flops / cost.seconds : 0.0;
    rows.push_back(
        row("    " + name, cost.calls, cost.seconds, cost.seconds / profiled, rate / 1e9, {rate / gemm, rate / gemm, rate / gemm}));
  }
  return rows;
}

}  // namespace

Benchmark train_step_benchmark() {
  return {"train-step",
          "A whole training step against the best matrix product",
          {{"config", "Configuration of the model and batch"}, device_option, set_option},
          run};
}

}  // namespace dmuon::bench
