// What a device has to reach, measured in one go: one row a bar, with the value found and the verdict. The bars are those of
// docs/gpu.md for one H200 and GPT-2 124M; a stand-in that runs on the host takes small shapes (--small), and misses them.
#include <algorithm>
#include <cmath>

#include "device_update.h"
#include "dmuon/backend/device.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "support.h"
#include "train/dry_run.h"
#include "training.h"

namespace dmuon::bench {
namespace {

class Bars {
 public:
  // `relation`: "at least", "at most" or "near" (within 10 % of 1); empty where a value is stated without a bar.
  void add(const std::string& what, double found, const std::string& relation, double bar, const std::string& details) {
    const bool passed = relation.empty() || (relation == "at least"  ? found >= bar
                                             : relation == "at most" ? found <= bar
                                                                     : std::fabs(found - 1.0) <= bar);
    Json row = Json::object();
    row.set("bar", what);
    row.set("found", found);
    row.set("wanted", relation.empty() ? "stated" : relation == "near" ? text("1 +- ", bar) : text(relation, " ", bar));
    row.set("verdict", relation.empty() ? "-" : passed ? "passed" : "failed");
    row.set("details", details);
    rows_.push_back(std::move(row));
  }
  Json::Array take() { return std::move(rows_); }

 private:
  Json::Array rows_;
};

std::string milliseconds(double seconds) { return text(format_number(seconds * 1e3, 4), " ms"); }

// Bytes per second of a copy on the device, read and written ones together.
double copy_bytes_per_second(const Arguments& arguments, Backend& backend, int64_t elements) {
  const auto array = [&] { return backend.allocate(Shape{elements}, DType::float32, MemoryCategory::workspace, "benchmark"); };
  const Tensor from = array(), to = array();
  backend.zero(backend.compute_stream(), from);
  const Spread seconds = measure(
      arguments, [&] { backend.copy(backend.compute_stream(), from, to); }, &backend);
  return 2.0 * static_cast<double>(from.bytes()) / seconds.median;
}

// What norm, update and publish copy cannot do without on one rank: passes over memory at the speed of a copy, products at the speed
// of the library's float16 ones. Bytes of each parameter: its gradient read for the norm, then for Muon gradient, momentum (twice),
// update (written, read), float16 in and out of the iterations, parameter (twice) and published copy; for AdamW gradient, two moments
// and the parameter (twice each) and the published copy.
double update_bound_seconds(Training& training, double bytes_per_second, double flops_per_second) {
  const double published = static_cast<double>(size_of(training.sharded().options().compute_dtype));
  double bytes = 0, flops = 0;
  for (const ParameterDeclaration& parameter : training.model().inventory().parameters()) {
    const auto elements = static_cast<double>(parameter.shape.elements());
    const bool matrix = parameter.role == ParameterRole::matrix;
    bytes += elements * (4 + published + (matrix ? 4 + 8 + 8 + 4 + 8 : 4 + 16 + 8));
    if (matrix) flops += newton_schulz_flops(NewtonSchulzSpecification{}, parameter.shape[0], parameter.shape[1]);
  }
  return bytes / bytes_per_second + flops / flops_per_second;
}

// One size of batch: the model's share of the best product, the memory beside the dry run's, the update beside its bound.
void whole_steps(const Arguments& arguments, Bars& bars, const std::string& config, const std::vector<std::string>& overrides,
                 const std::string& name, bool small) {
  const Configuration configuration = load_configuration(config, overrides);
  const auto self = make_self_communicator();
  const RunGrid grid = make_run_grid(configuration.distribution, 1, 1, any_rule_votes(configuration.optimizer));
  const DryRunReport predicted = dry_run(configuration, TokenData{}, models(), grid, arguments.threads);

  Training training(config, overrides, arguments.threads);
  for (int i = 0; i < (small ? 2 : 3); ++i) training.step();
  // Before anything else takes memory of the device.
  const int64_t taken = device_of(training.backend())->memory().peak_reserved;
  double products = training.best_product();
  std::vector<double> fractions, model, update;
  for (int pair = 0; pair < std::min(arguments.pairs, 7); ++pair) {
    const Training::Seconds seconds = training.step();
    fractions.push_back(training.model_flops() / seconds.model());
    model.push_back(seconds.model());
    update.push_back(seconds.update);
  }
  products = std::max(products, training.best_product());
  for (double& fraction : fractions) fraction /= products;
  const double model_seconds = spread_of(model).median, update_seconds = spread_of(update).median;
  bars.add(name + ": model FLOPs / best product", spread_of(fractions).median, "at least", 0.40,
           text(milliseconds(model_seconds), " forward and backward, ", format_number(training.model_flops() / model_seconds / 1e12, 4),
                " TFLOP/s, best product ", format_number(products / 1e12, 4)));
  bars.add(name + ": memory / dry run", static_cast<double>(taken) / static_cast<double>(predicted.device_bytes), "near", 0.10,
           text(format_bytes(taken), " taken, ", format_bytes(predicted.device_bytes), " predicted"));
  const int64_t side = small ? 64 : 8192;
  const double half = product_flops_per_second(training.backend(), side, side, side, DType::float16);
  const double bytes = copy_bytes_per_second(arguments, training.backend(), small ? 4096 : int64_t{1} << 28);
  const double bound = update_bound_seconds(training, bytes, half);
  bars.add(name + ": norm, update and publish / their bound", update_seconds / bound, "", 0.0,
           text(milliseconds(update_seconds), " found, ", milliseconds(bound), " by ", format_number(bytes / 1e12, 3), " TB/s and ",
                format_number(half / 1e12, 4), " TFLOP/s"));
}

Json::Array run(const Arguments& arguments) {
  const bool small = arguments.own.contains("small");
  const auto config = arguments.own.find("config");
  if (config == arguments.own.end()) throw ConfigError("device-bars needs --config FILE, e.g. configs/bench_gpt2_124m.json");
  Bars bars;
  {
    const auto backend = make_backend(arguments);
    DeviceComparisons comparisons(arguments, *backend);
    const int64_t side = small ? 64 : 4096;
    std::vector<DeviceRatio> forms = comparisons.symmetric(side, side, false);
    const DeviceRatio& best = *std::min_element(forms.begin(), forms.end(), [](const DeviceRatio& a, const DeviceRatio& b) {
      return a.result.ratio.median < b.result.ratio.median;
    });
    bars.add(text("symmetric kernel / full product at ", side), best.result.ratio.median, "at most", 0.65,
             text(best.form, ": ", milliseconds(best.result.a_seconds), " beside ", milliseconds(best.result.b_seconds)));
    const DeviceRatio update = comparisons.update(gpt2_matrices(small));
    bars.add("Newton-Schulz update, direct form of the library / own", 1.0 / update.result.ratio.median, "at least", 2.0,
             text(milliseconds(update.result.a_seconds), " beside ", milliseconds(update.result.b_seconds), ", ", update.library_form));
  }
  const std::vector<std::string> common = overrides_of(arguments);
  const auto batches = arguments.own.find("batches");
  std::istringstream list(batches != arguments.own.end() ? batches->second : small ? "2" : "16,32,64");
  for (std::string each; std::getline(list, each, ',');) {
    const auto batch = static_cast<int64_t>(number_option("batches", each, 1, 65536));
    std::vector<std::string> overrides = common;
    if (!small)
      for (const char* key : {"model.context_length=1024", "model.activation=gelu_tanh", "distribution.compute_dtype=bfloat16"})
        overrides.emplace_back(key);
    const int64_t length = load_configuration(config->second, overrides).model.context_length;
    overrides.push_back(text("training.batch_tokens=", batch * length));
    whole_steps(arguments, bars, config->second, overrides, text("B = ", batch), small);
  }
  return bars.take();
}

}  // namespace

Benchmark device_bars_benchmark() {
  return {"device-bars",
          "on a GPU: every number that docs/gpu.md expects, beside what is found, with a verdict",
          {{"config", "Configuration of GPT-2 124M; context, activation and bfloat16 are set unless --small"},
           {"batches", "Sequences of a step, several separated by commas (16,32,64)"},
           {"device", "cuda (the default) or auto"},
           set_option,
           small_option},
          run,
          "cuda"};
}

}  // namespace dmuon::bench
