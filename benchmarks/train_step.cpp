// A whole training step against the best matrix product of the same backend in the same run. Model FLOPs are 6 per
// parameter that enters a product and token, plus attention at half (ModelFacts); the optimizer is left out of the
// fraction and shown beside it. Products and steps alternate; a step is compared with the better of the two sets of
// products around it.
#include <algorithm>
#include <chrono>

#include "dmuon/core/text.h"
#include "support.h"
#include "training.h"

namespace dmuon::bench {
namespace {

double product_flops_per_second(Backend& backend, int64_t m, int64_t n, int64_t k) {
  const Tensor a = random_tensor(backend, {m, k}), b = random_tensor(backend, {n, k}), c = random_tensor(backend, {m, n});
  Multiply product;
  product.a = a, product.b = b, product.c = c, product.transpose_b = true;
  double best = 1e30;
  for (int i = 0; i < 4; ++i) {
    const auto start = std::chrono::steady_clock::now();
    backend.matrix().multiply(backend.compute_stream(), product);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) / best;
}

// The best of 1024^3, 2048^3 and the model's own products.
double best_product(Training& training) {
  const int64_t rows = training.tokens_per_step(), width = training.configuration().model.width;
  const int64_t shapes[][3] = {
      {1024, 1024, 1024}, {2048, 2048, 2048}, {rows, width, width}, {rows, 4 * width, width}, {rows, width, 4 * width}};
  double best = 0.0;
  for (const auto& s : shapes) best = std::max(best, product_flops_per_second(training.backend(), s[0], s[1], s[2]));
  return best;
}

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
  Training training(config->second, arguments.threads);
  const double flops = training.model().facts().flops_per_token(training.configuration().model.context_length) *
                       static_cast<double>(training.tokens_per_step());
  training.step();
  training.step();
  std::vector<double> fractions, model, forward, backward, update, products{best_product(training)};
  for (int pair = 0; pair < arguments.pairs; ++pair) {
    const Training::Seconds seconds = training.step();
    products.push_back(best_product(training));
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
  return {"train-step", "A whole training step against the best matrix product", {{"config", "Configuration of the model and batch"}}, run};
}

}  // namespace dmuon::bench
