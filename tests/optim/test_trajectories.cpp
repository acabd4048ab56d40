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
                                     const Shape& shape, double learning_rate, DType dtype = DType::float64) {
  const auto backend = reference_backend();
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
