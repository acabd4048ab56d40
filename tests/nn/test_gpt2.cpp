#include <cmath>

#include "nn/tiny_model.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

struct Variant {
  const char* name;
  Json settings;
};

std::vector<Variant> variants() {
  const Json base = tiny_settings();
  return {
      {"layer norm, tanh gelu, tied, bias", base},
      {"exact gelu", with(base, {{"activation", "gelu"}})},
      {"squared relu", with(base, {{"activation", "relu_squared"}})},
      {"rms norm without bias", with(base, {{"normalization", "rms_norm"}, {"bias", false}})},
      {"rms norm with bias", with(base, {{"normalization", "rms_norm"}})},
      {"untied", with(base, {{"tied_head", false}})},
      {"layer norm without bias", with(base, {{"bias", false}})},
      {"padded vocabulary", with(base, {{"vocabulary_multiple", 8}})},
      {"dropout", with(base, {{"dropout", 0.3}})},
      {"all at once",
       with(base, {{"tied_head", false}, {"dropout", 0.2}, {"vocabulary_multiple", 16}, {"activation", "gelu"}, {"heads", 3}})},
  };
}

}  // namespace

TEST_CASE("gradients of every variant equal finite differences") {
  const auto backend = reference_backend();
  for (const Variant& variant : variants()) {
    INFO(variant.name);
    Instance instance(*backend, variant.settings);
    Batch batch = random_batch(2, 5, 11);
    batch.targets[3] = -1;
    run(instance, batch, true, 0.7);
    const Values gradients = instance.gradients();
    for (const ParameterDeclaration& parameter : instance.model->inventory().parameters()) {
      INFO(parameter.name);
      const std::vector<double>& gradient = gradients.at(parameter.name);
      std::vector<double> values = to_doubles(*backend, parameter.state->value);
      const auto loss_along = [&](const std::vector<double>& direction, double step) {
        std::vector<double> moved = values;
        for (size_t i = 0; i < moved.size(); ++i) moved[i] += step * direction[i];
        from_doubles(*backend, moved, parameter.state->value);
        return 0.7 * sum(run(instance, batch, false));
      };
      // One random direction through the whole tensor, and single elements.
      std::vector<std::vector<double>> directions{random_values(parameter.shape.elements(), 55)};
      for (size_t i = 0; i < 3; ++i) {
        std::vector<double> unit(values.size(), 0.0);
        unit[(i * 7 + 1) % unit.size()] = 1.0;
        directions.push_back(unit);
      }
      for (const std::vector<double>& direction : directions) {
        const double step = 1e-5;
        const double expected = (loss_along(direction, step) - loss_along(direction, -step)) / (2 * step);
        CHECK(dot(direction, gradient) == Approx(expected).epsilon(1e-6).margin(1e-8));
      }
      from_doubles(*backend, values, parameter.state->value);
    }
  }
}

TEST_CASE("initializer fan_in gives matrices 1/sqrt(inputs), embeddings and head the deviation") {
  const auto backend = reference_backend();
  const Json settings =
      with(tiny_settings(), {{"width", 32}, {"tied_head", false}, {"initializer_deviation", 0.02}, {"vocabulary_size", 64}});
  const auto deviations = [&](const char* initializer) {
    std::map<std::string, double> result;
    Instance instance(*backend, with(settings, {{"initializer", initializer}}), DType::float64, false);
    for (const ParameterDeclaration& parameter : instance.model->inventory().parameters()) {
      const std::vector<double> values = to_doubles(*backend, parameter.state->value);
      double squares = 0;
      for (const double value : values) squares += value * value;
      result[parameter.name] = std::sqrt(squares / static_cast<double>(values.size()));
    }
    return result;
  };
  const auto fan_in = deviations("fan_in"), fixed = deviations("fixed");
  const double root = std::sqrt(32.0);
  CHECK(fan_in.at("blocks.1.attention.query.weight") == Approx(1 / root).epsilon(0.1));
  CHECK(fan_in.at("blocks.0.mlp.up.weight") == Approx(1 / root).epsilon(0.1));
  CHECK(fan_in.at("blocks.0.attention.output.weight") == Approx(1 / root / 2).epsilon(0.1));  // 2 layers: sqrt(2 x 2) = 2
  CHECK(fan_in.at("blocks.1.mlp.down.weight") == Approx(1 / (2 * root) / 2).epsilon(0.1));    // 4 x 32 inputs
  CHECK(fixed.at("blocks.1.attention.query.weight") == Approx(0.02).epsilon(0.1));
  CHECK(fixed.at("blocks.1.mlp.down.weight") == Approx(0.01).epsilon(0.1));
  for (const char* name : {"embedding.token.weight", "embedding.position.weight", "head.weight"}) {
    CHECK(fan_in.at(name) == Approx(0.02).epsilon(0.15));
    CHECK(fan_in.at(name) == fixed.at(name));
  }
  CHECK_THROWS_WITH(make_model(with(settings, {{"initializer", "xavier"}})),
                    Catch::Contains("model.initializer") && Catch::Contains("fan_in"));
}

TEST_CASE("GPT-2 124M counts its parameters and starts near ln V") {
  const auto model = make_model(parse_json(R"({"family": "gpt2"})", "124M"));
  CHECK(model->facts().parameters == 124'439'808);
  CHECK(model->facts().gemm_parameters == 12 * 12 * 768 * 768 + 50257 * 768);
  const auto backend = reference_backend();
  Instance instance(*backend, with(tiny_settings(), {{"initializer_deviation", 0.02}, {"vocabulary_multiple", 8}}), DType::float64, false);
  CHECK(sum(run(instance, random_batch(3, 7, 11), false)) / 21 == Approx(std::log(11.0)).epsilon(0.01));
}
