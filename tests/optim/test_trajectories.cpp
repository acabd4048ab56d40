// Whole trajectories of the rules against float64 goldens: muon_fixtures.json (three steps on a 2 x 3 matrix) and what
// scripts/make_fixtures.py transcribes for the other presets, shapes and schedules, or computes with torch itself.
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/muon.h"
#include "dmuon/optim/sgd.h"
#include "optim/optimizer_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

// Runs `rule` over the gradients and returns the parameter after every step.
std::vector<std::vector<double>> run(UpdateRule& rule, const std::vector<double>& start, const std::vector<std::vector<double>>& gradients,
                                     const Shape& shape, double learning_rate, DType dtype = DType::float64, bool on_device = false) {
  const auto backend = on_device ? make_test_backend() : reference_backend();
  Stream& stream = backend->compute_stream();
  UpdateItem item{"weight", tensor_of(*backend, start, shape, dtype), {}, {}};
  for (size_t i = 0; i < rule.state().size(); ++i)
    item.state.push_back(tensor_of(*backend, std::vector<double>(start.size(), 0.0), shape, dtype));
  std::vector<std::vector<double>> trajectory;
  for (size_t step = 0; step < gradients.size(); ++step) {
    item.gradient = tensor_of(*backend, gradients[step], shape, dtype);
    rule.prepare(*backend, stream, {static_cast<int64_t>(step) + 1, learning_rate, 1.0});
    rule.local(*backend, stream, {&item, 1});
    rule.global(*backend, stream, {&item, 1});
    trajectory.push_back(to_doubles(*backend, item.parameter));
  }
  return trajectory;
}

void check_close(const std::vector<std::vector<double>>& found, const Json& expected, double tolerance) {
  REQUIRE(found.size() == expected.as_array().size());
  for (size_t step = 0; step < found.size(); ++step) {
    INFO("step " << step + 1);
    CHECK(largest_difference(found[step], numbers(expected.as_array()[step])) <= tolerance);
  }
}

}  // namespace

TEST_CASE("Muon presets follow their published trajectories") {
  const Json data = fixture("muon_fixtures.json");
  const std::vector<double> start = numbers(data.at("W0"));
  std::vector<std::vector<double>> gradients;
  for (const Json& gradient : data.at("G").as_array()) gradients.push_back(numbers(gradient));

  struct Case {
    const char* key;
    const char* preset;
    double learning_rate;
    ScaleMode scale;
  };
  const auto each = GENERATE(Case{"keller lr.02 wd0 b.95 nest", "keller", 0.02, ScaleMode::original},
                             Case{"torch default lr1e-3 wd.1 orig", "torch", 1e-3, ScaleMode::original},
                             Case{"torch match_rms lr1e-3 wd.1", "torch", 1e-3, ScaleMode::match_rms},
                             Case{"moonlight lr1e-3 wd.1 sum", "moonlight", 1e-3, ScaleMode::match_rms},
                             Case{"EO default lr3e-4 wd.01 quintic spectral", "emerging", 3e-4, ScaleMode::spectral});
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
  INFO(each.key << ", " << name_of(form));
  MuonOptions options = muon_options(each.preset);
  options.scale = each.scale;
  options.newton_schulz.form = form;
  const Json& expected = data.at("traj").at(each.key);
  check_close(run(*make_muon(options), start, gradients, Shape{2, 3}, each.learning_rate), expected, 1e-12);
  check_close(run(*make_muon(options), start, gradients, Shape{2, 3}, each.learning_rate, DType::float32), expected, 1e-6);
}

TEST_CASE("Muon equals the float64 transcriptions: shapes, scheduled momentum, a zero gradient on the way") {
  const Json data = fixture("optimizer_fixtures.json").at("muon");
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram, IterationForm::automatic);
  for (const Json& each : data.at("cases").as_array()) {
    const Json& input = data.at("inputs").at(each.at("input").as_string());
    std::vector<int64_t> sizes;
    for (const Json& size : input.at("shape").as_array()) sizes.push_back(size.as_integer());
    std::vector<std::vector<double>> gradients;
    for (const Json& gradient : input.at("gradients").as_array()) gradients.push_back(numbers(gradient));
    MuonOptions options = muon_options(each.at("preset").as_string());
    options.newton_schulz.form = form;
    options.weight_decay = each.at("weight_decay").as_number();
    options.momentum_start = each.at("momentum_start").as_number();
    options.momentum_warmup_steps = each.at("momentum_warmup_steps").as_integer();
    INFO(options.newton_schulz.coefficients << " " << each.at("preset").as_string() << ", " << each.at("input").as_string() << ", "
                                            << name_of(form) << ", momentum over " << options.momentum_warmup_steps);
    const double rate = each.at("learning_rate").as_number();
    const Shape shape{std::span<const int64_t>(sizes)};
    const std::vector<double> start = numbers(input.at("start"));
    check_close(run(*make_muon(options), start, gradients, shape, rate), each.at("parameters"), 1e-12);
    check_close(run(*make_muon(options), start, gradients, shape, rate, DType::float32), each.at("parameters"), 2e-6);
  }
}

TEST_CASE("AdamW and SGD equal torch's", "[device]") {
  const Json data = fixture("optimizer_fixtures.json").at("torch");
  const std::vector<double> start = numbers(data.at("start"));
  std::vector<std::vector<double>> gradients;
  for (const Json& gradient : data.at("gradients").as_array()) gradients.push_back(numbers(gradient));
  for (const Json& each : data.at("adamw").as_array()) {
    const AdamWOptions options{each.at("beta1").as_number(), each.at("beta2").as_number(), each.at("epsilon").as_number(),
                               each.at("weight_decay").as_number()};
    check_close(run(*make_adamw(options), start, gradients, Shape{3, 4}, each.at("learning_rate").as_number()), each.at("parameters"),
                1e-14);
    check_close(run(*make_adamw(options), start, gradients, Shape{3, 4}, each.at("learning_rate").as_number(), DType::float32, true),
                each.at("parameters"), 2e-6);
  }
  for (const Json& each : data.at("sgd").as_array()) {
    const SgdOptions options{each.at("momentum").as_number(), each.at("dampening").as_number(), each.at("nesterov").as_bool(), 0.0};
    check_close(run(*make_sgd(options), start, gradients, Shape{3, 4}, each.at("learning_rate").as_number()), each.at("parameters"), 1e-14);
    check_close(run(*make_sgd(options), start, gradients, Shape{3, 4}, each.at("learning_rate").as_number(), DType::float32, true),
                each.at("parameters"), 2e-6);
  }
}

TEST_CASE("AdamW's bias correction holds at large step numbers") {
  // After many steps of one gradient m = g (1 - beta1^t), v = g^2 (1 - beta2^t): the update is g / (|g| + epsilon).
  const auto backend = reference_backend();
  const auto rule = make_adamw({0.9, 0.999, 0.0, 0.0});
  for (int64_t step : {int64_t{1}, int64_t{255}, int64_t{1000}, int64_t{100000}}) {
    const double m = 1.0 - std::pow(0.9, static_cast<double>(step - 1)), v = 1.0 - std::pow(0.999, static_cast<double>(step - 1));
    UpdateItem item{"weight",
                    tensor_of(*backend, {1.0}, Shape{1}, DType::float64),
                    tensor_of(*backend, {2.0}, Shape{1}, DType::float64),
                    {tensor_of(*backend, {2.0 * m}, Shape{1}, DType::float64), tensor_of(*backend, {4.0 * v}, Shape{1}, DType::float64)}};
    rule->prepare(*backend, backend->compute_stream(), {step, 0.5, 1.0});
    rule->global(*backend, backend->compute_stream(), {&item, 1});
    CHECK(to_doubles(*backend, item.parameter).front() == Approx(0.5).epsilon(1e-12));
  }
}

TEST_CASE("SGD's decay is decoupled: it shrinks the parameter and leaves the momentum alone") {
  const auto backend = reference_backend();
  const auto rule = make_sgd({0.9, 0.0, false, 0.25});
  UpdateItem item{"weight",
                  tensor_of(*backend, {8.0, -4.0}, Shape{2}, DType::float64),
                  tensor_of(*backend, {0.0, 0.0}, Shape{2}, DType::float64),
                  {tensor_of(*backend, {0.0, 0.0}, Shape{2}, DType::float64)}};
  for (int64_t step : {1, 2}) {
    rule->prepare(*backend, backend->compute_stream(), {step, 0.5, 1.0});
    rule->global(*backend, backend->compute_stream(), {&item, 1});
  }
  CHECK(to_doubles(*backend, item.parameter) == std::vector<double>{8.0 * 0.875 * 0.875, -4.0 * 0.875 * 0.875});
  CHECK(to_doubles(*backend, item.state[0]) == std::vector<double>{0.0, 0.0});
}
