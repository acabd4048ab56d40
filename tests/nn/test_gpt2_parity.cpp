// GPT-2 against PyTorch: loss, gradients, and three steps of AdamW and Muon, from scripts/make_gpt2_fixtures.py.
#include <cmath>

#include "dmuon/core/file.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/muon.h"
#include "nn/tiny_model.h"
#include "support/paths.h"
#include "support/test_device.h"

using namespace dmuon;
using namespace dmuon::test;
using dmuon::testing::make_test_backend;
using dmuon::testing::test_device_is_cuda;

namespace {

Json fixture() {
  const Path path = Path(dmuon::testing::test_data()) / "gpt2_parity.json";
  return parse_json(read_file(path), path.string());
}

// The script's formula for weights.
std::vector<double> formula(const ParameterDeclaration& parameter) {
  const bool norm_weight = parameter.name.find("norm") != std::string::npos && parameter.name.ends_with("weight");
  const double spread = parameter.shape.rank() == 2 ? 0.25 : 0.125;
  const uint64_t base = hash_name(parameter.name);
  std::vector<double> values;
  for (int64_t i = 0; i < parameter.shape.elements(); ++i) {
    const double uniform = static_cast<double>(mix64(base + static_cast<uint64_t>(i)) >> 11) * 0x1p-53;
    values.push_back((norm_weight ? 1.0 : 0.0) + spread * (2.0 * uniform - 1.0));
  }
  return values;
}

std::vector<int32_t> indices(const char* name, int64_t count, int64_t vocabulary) {
  std::vector<int32_t> result;
  for (int64_t i = 0; i < count; ++i)
    result.push_back(static_cast<int32_t>(mix64(hash_name(name) + static_cast<uint64_t>(i)) % static_cast<uint64_t>(vocabulary)));
  return result;
}

struct Parity {
  Instance instance;
  Batch batch;
  double scale;

  Parity(Backend& backend, const Json& data, const Json& variant, DType dtype)
      : instance(backend, variant.at("settings"), dtype, false),
        batch{data.at("batch").as_integer(), data.at("length").as_integer(), {}, {}} {
    const int64_t count = batch.batch * batch.length;
    scale = 1.0 / static_cast<double>(count);
    const int64_t vocabulary = instance.model->facts().vocabulary_size;
    batch.tokens = indices("tokens", count, vocabulary);
    batch.targets = indices("targets", count, vocabulary);
    for (const ParameterDeclaration& parameter : instance.model->inventory().parameters())
      from_doubles(backend, formula(parameter), parameter.state->value);
  }
  double loss(bool record) { return scale * sum(run(instance, batch, record, scale)); }
};

double norm(const std::vector<double>& values) { return std::sqrt(dot(values, values)); }

void check_gradients_of(Backend& backend, DType dtype, double loss_tolerance, double tolerance) {
  const Json data = fixture();
  for (const Json& variant : data.at("variants").as_array()) {
    INFO(variant.at("name").as_string());
    Parity parity(backend, data, variant, dtype);
    CHECK(parity.loss(true) == Approx(variant.at("loss").as_number()).epsilon(loss_tolerance));
    const Values gradients = parity.instance.gradients();
    CHECK(gradients.size() == variant.at("gradients").as_object().size());
    for (const auto& [name, expected] : variant.at("gradients").as_object()) {
      INFO(name);
      const std::vector<double>& gradient = gradients.at(name);
      const double wanted = expected.at("norm").as_number();
      const double margin = tolerance * std::max(wanted, 1e-2);  // key biases: the true gradient is zero
      CHECK(norm(gradient) == Approx(wanted).epsilon(0).margin(margin));
      for (const Json& sample : expected.at("samples").as_array()) {
        const auto index = static_cast<size_t>(sample.as_array()[0].as_integer());
        CHECK(gradient[index] == Approx(sample.as_array()[1].as_number()).epsilon(0).margin(margin));
      }
    }
  }
}

// Rules applied to the parameter tensors directly, as the script does.
struct Trainer {
  Parity& parity;
  std::unique_ptr<UpdateRule> adamw, muon;
  std::vector<UpdateItem> element_wise, matrices;

  Trainer(Parity& p, bool with_muon) : parity(p) {
    AdamWOptions options;
    options.beta2 = 0.95;
    options.epsilon = 1e-8;
    options.weight_decay = 0.1;
    adamw = make_adamw(options);
    if (with_muon) muon = make_muon(muon_options("keller"));
    for (const ParameterDeclaration& parameter : parity.instance.model->inventory().parameters()) {
      const bool orthogonal = with_muon && parameter.role == ParameterRole::matrix;
      UpdateItem item{parameter.name, parameter.state->value, parameter.state->gradient->tensor, {}};
      for (size_t i = 0; i < (orthogonal ? muon : adamw)->state().size(); ++i) {
        item.state.push_back(
            parity.instance.backend.allocate(parameter.shape, parity.instance.dtype, MemoryCategory::optimizer_state, "state"));
        parity.instance.backend.zero(parity.instance.backend.compute_stream(), item.state.back());
      }
      (orthogonal ? matrices : element_wise).push_back(std::move(item));
    }
  }

  void step(int64_t number) {
    const auto apply = [&](UpdateRule& rule, std::span<UpdateItem> items, double learning_rate) {
      Backend& backend = parity.instance.backend;
      rule.prepare(backend, backend.compute_stream(), {number, learning_rate, 1.0});
      rule.local(backend, backend.compute_stream(), items);
      rule.global(backend, backend.compute_stream(), items);
    };
    apply(*adamw, element_wise, 1e-2);
    if (muon) apply(*muon, matrices, 0.02);
  }
};

void check_training(Backend& backend, DType dtype, double tolerance) {
  const Json data = fixture();
  for (const Json& variant : data.at("variants").as_array())
    for (const char* rule : {"adamw", "muon"}) {
      INFO(variant.at("name").as_string() << ", " << rule);
      Parity parity(backend, data, variant, dtype);
      Trainer trainer(parity, std::string_view(rule) == "muon");
      const Json::Array& losses = variant.at(rule).at("losses").as_array();
      for (size_t step = 0; step < 4; ++step) {
        INFO("after " << step << " steps");
        parity.instance.clear_gradients();
        CHECK(parity.loss(true) == Approx(losses[step].as_number()).epsilon(tolerance));
        if (step < 3) trainer.step(static_cast<int64_t>(step) + 1);
      }
      for (const auto& [name, expected] : variant.at(rule).at("norms").as_object()) {
        INFO(name);
        const Tensor& value = parity.instance.model->inventory().find(name)->state->value;
        // The true gradient of a key bias is zero, so AdamW follows its rounding: at most the learning rate per step.
        const bool noise = dtype == DType::float32 && name.find("key.bias") != std::string::npos;
        const double margin = noise ? 3 * 1e-2 * std::sqrt(static_cast<double>(value.elements())) : 0.0;
        CHECK(norm(to_doubles(backend, value)) == Approx(expected.as_number()).epsilon(tolerance).margin(margin));
      }
    }
}

}  // namespace

TEST_CASE("loss and gradients equal PyTorch's in float64") { check_gradients_of(*reference_backend(), DType::float64, 1e-12, 1e-9); }

TEST_CASE("loss and gradients equal PyTorch's in float32") { check_gradients_of(*reference_backend(), DType::float32, 1e-6, 1e-5); }

TEST_CASE("loss and gradients equal PyTorch's on the CPU backend") {
  for (const int threads : {1, 2}) {
    BackendOptions options;
    options.threads = threads;
    check_gradients_of(*make_cpu_backend(options), DType::float32, 1e-6, 1e-5);
  }
}

TEST_CASE("loss and gradients equal PyTorch's on the device", "[device]") {
  check_gradients_of(*make_test_backend(), DType::float32, 1e-6, 1e-5);
}

TEST_CASE("three steps of AdamW and Muon equal PyTorch's") {
  check_training(*reference_backend(), DType::float64, 1e-9);
  check_training(*reference_backend(), DType::float32, 1e-5);
}

TEST_CASE("three steps of AdamW and Muon on the device", "[device]") {
  // A device orthogonalises in float16: half a percent of an update.
  check_training(*make_test_backend(), DType::float32, test_device_is_cuda() ? 1e-3 : 1e-5);
}

TEST_CASE("a device equals the reference on a model longer than its tiles", "[device]") {
  const Json settings =
      with(tiny_settings(), {{"width", 40}, {"heads", 5}, {"context_length", 83}, {"dropout", 0.1}, {"vocabulary_size", 77}});
  const Batch batch = random_batch(2, 83, 77);
  const auto reference = reference_backend(), backend = make_test_backend();
  Instance exact(*reference, settings), instance(*backend, settings, DType::float32);
  const std::vector<double> expected_losses = run(exact, batch, true, 0.1);
  CHECK(relative_difference(run(instance, batch, true, 0.1), expected_losses) < 1e-6);
  const Values expected = exact.gradients();
  for (const auto& [name, gradient] : instance.gradients()) {
    INFO(name);
    if (name.find("key.bias") != std::string::npos)
      CHECK(norm(gradient) < 1e-5);
    else
      CHECK(relative_difference(gradient, expected.at(name)) < 1e-5);
  }
}

TEST_CASE("the CPU backend equals the reference on a model longer than its tiles, in every host mode") {
  const Json settings =
      with(tiny_settings(), {{"width", 40}, {"heads", 5}, {"context_length", 83}, {"dropout", 0.1}, {"vocabulary_size", 77}});
  const Batch batch = random_batch(2, 83, 77);
  const auto reference = reference_backend();
  Instance exact(*reference, settings);
  const std::vector<double> exact_losses = run(exact, batch, true, 0.1);
  const Values expected = exact.gradients();
  Values plain;
  for (const HostMode mode : {HostMode::normal, HostMode::guarded, HostMode::deferred}) {
    BackendOptions options;
    options.mode = mode;
    const auto backend = make_cpu_backend(options);
    Instance instance(*backend, settings, DType::float32);
    CHECK(relative_difference(run(instance, batch, true, 0.1), exact_losses) < 1e-6);
    const Values gradients = instance.gradients();
    for (const auto& [name, gradient] : gradients) {
      INFO(name);
      if (name.find("key.bias") != std::string::npos)
        CHECK(norm(gradient) < 1e-5);
      else
        CHECK(relative_difference(gradient, expected.at(name)) < 1e-5);
    }
    if (mode == HostMode::normal) plain = gradients;
    CHECK(gradients == plain);
  }
}
