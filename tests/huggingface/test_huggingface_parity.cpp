// Imported models against transformers: logits, loss, gradients, and three steps of AdamW and Muon.
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/muon.h"
#include "huggingface/huggingface_support.h"
#include "support/test_device.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

struct Imported {
  HuggingFaceModel model;
  HuggingFaceLayout layout;
  Instance instance;
  SafetensorsReader expected;
  Batch batch;

  Imported(Backend& backend, const std::string& name)
      : model(read_huggingface_config(huggingface_fixture(name), models())),
        layout(model.family.huggingface.layout(model.settings)),
        instance(backend, model.settings, DType::float32, false),
        expected(huggingface_fixture(name) / "expected.safetensors") {
    const HuggingFaceReader reader(huggingface_fixture(name), layout, instance.model->inventory());
    reader.check_tied_copy();
    for (const ParameterDeclaration& parameter : instance.model->inventory().parameters()) {
      std::vector<float> values(static_cast<size_t>(parameter.shape.elements()));
      reader.read(parameter.name, 0, parameter.shape.elements(), values.data());
      from_doubles(backend, std::vector<double>(values.begin(), values.end()), parameter.state->value);
    }
    batch = fixture_batch(expected);
  }

  double scale() const { return 1.0 / static_cast<double>(batch.tokens.size()); }

  Values expected_values(const std::string& group) const { return test::expected_values(expected, layout, group); }
};

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

constexpr const char* fixtures[] = {"gpt2", "qwen2", "qwen3"};

void train(Imported& imported, bool with_muon) {
  Backend& backend = imported.instance.backend;
  AdamWOptions options;
  options.epsilon = 1e-3;
  const std::unique_ptr<UpdateRule> adamw = make_adamw(options), muon = make_muon(muon_options("keller"));
  std::vector<UpdateItem> element_wise, matrices;
  for (const ParameterDeclaration& parameter : imported.instance.model->inventory().parameters()) {
    const bool orthogonal = with_muon && parameter.role == ParameterRole::matrix;
    UpdateItem item{parameter.name, parameter.state->value, parameter.state->gradient->tensor, {}};
    for (size_t i = 0; i < (orthogonal ? muon : adamw)->state().size(); ++i) {
      item.state.push_back(backend.allocate(parameter.shape, DType::float32, MemoryCategory::optimizer_state, "state"));
      backend.zero(backend.compute_stream(), item.state.back());
    }
    (orthogonal ? matrices : element_wise).push_back(std::move(item));
  }
  for (int64_t step = 1; step <= 3; ++step) {
    imported.instance.clear_gradients();
    run(imported.instance, imported.batch, true, imported.scale());
    adamw->prepare(backend, backend.compute_stream(), {step, 1e-2, 1.0});
    adamw->global(backend, backend.compute_stream(), element_wise);
    if (!with_muon) continue;
    muon->prepare(backend, backend.compute_stream(), {step, 0.02, 1.0});
    muon->global(backend, backend.compute_stream(), matrices);
  }
}

}  // namespace

TEST_CASE("logits, loss and gradients of imported models equal transformers'", "[device]") {
  const auto backend = dmuon::testing::make_test_backend();
  for (const char* name : fixtures) {
    INFO(name);
    Imported imported(*backend, name);
    Backend& cpu = *backend;
    ExecutionContext context = make_context(cpu, nullptr, imported.batch.batch);
    const Shape shape{imported.batch.batch, imported.batch.length};
    const Variable logits = imported.instance.model->forward(context, index_tensor(cpu, shape, imported.batch.tokens),
                                                             positions_of(cpu, shape[0], 0, shape[1]));
    const std::vector<float> wanted = read_floats(imported.expected, "logits");
    CHECK(largest_difference(to_doubles(cpu, logits.value()), {wanted.begin(), wanted.end()}) < 1e-4);

    const double loss = imported.scale() * sum(run(imported.instance, imported.batch, true, imported.scale()));
    CHECK(loss == Approx(read_floats(imported.expected, "loss")[0]).epsilon(1e-6));
    const Values gradients = imported.instance.gradients(), expected = imported.expected_values("gradient");
    CHECK(gradients.size() == expected.size());
    for (const auto& [parameter, gradient] : gradients) {
      INFO(parameter);
      const double size = std::sqrt(dot(expected.at(parameter), expected.at(parameter)));
      // The gradient of a GPT-2 key bias is zero.
      if (size > 1e-6) CHECK(relative_difference(gradient, expected.at(parameter)) < 1e-4);
      CHECK(largest_difference(gradient, expected.at(parameter)) < 1e-5);
    }
  }
}

TEST_CASE("three steps of AdamW and Muon on imported models equal torch's", "[device]") {
  const auto backend = dmuon::testing::make_test_backend();
  for (const char* name : fixtures)
    for (const char* rule : {"adamw", "muon"}) {
      INFO(name << ", " << rule);
      Imported imported(*backend, name);
      const Values before = [&] {
        Values values;
        for (const ParameterDeclaration& parameter : imported.instance.model->inventory().parameters())
          values[parameter.name] = to_doubles(*backend, parameter.state->value);
        return values;
      }();
      train(imported, std::string_view(rule) == "muon");
      const Values expected = imported.expected_values(rule);
      CHECK(expected.size() > 10);
      for (const auto& [parameter, wanted] : expected) {
        INFO(parameter);
        const std::vector<double> now = to_doubles(*backend, imported.instance.model->inventory().find(parameter)->state->value);
        CHECK(largest_difference(now, wanted) < 1e-4);
        CHECK(largest_difference(now, before.at(parameter)) > 1e-4);
      }
    }
}
