// Operations in every dtype that the device under test computes in, against float64 on the reference backend.
#include <algorithm>

#include "autograd/gradient_check.h"
#include "support/test_device.h"

using namespace dmuon;
using namespace dmuon::test;
using Catch::Matchers::Contains;
using dmuon::testing::make_test_backend;
using Inputs = std::vector<Variable>;

namespace {

struct Case {
  const char* name;
  std::vector<Shape> shapes;
  std::vector<size_t> parameters;  // inputs that are weights, biases or tables
  Operation operation;
  int64_t sequences = 1;
};

AttentionOptions grouped_attention(double dropout) {
  AttentionOptions options;
  options.heads = 4;
  options.key_value_heads = 2;
  options.dropout = dropout;
  options.operation = 4;
  return options;
}

std::vector<Case> cases() {
  const std::vector<Shape> boundary{Shape{2, 3, 20}, Shape{2, 3, 20}, Shape{20}, Shape{20}, Shape{20}};
  return {
      {"embedding",
       {Shape{5, 12}, Shape{4, 12}},
       {0, 1},
       [](ExecutionContext& context, const Inputs& in) {
         const Tensor tokens = index_tensor(context.backend, Shape{2, 3}, {4, 0, 4, 2, 4, 0});
         const Tensor positions = index_tensor(context.backend, Shape{2, 3}, {0, 1, 2, 0, 1, 2});
         return Inputs{embedding(context, tokens, in[0], positions, in[1], 0.4, 3)};
       },
       2},
      {"linear",
       {Shape{2, 3, 20}, Shape{12, 20}, Shape{12}},
       {1, 2},
       [](ExecutionContext& context, const Inputs& in) { return Inputs{linear(context, in[0], in[1], in[2])}; }},
      {"a weight used twice",
       {Shape{3, 12}, Shape{12, 12}, Shape{12}},
       {1, 2},
       [](ExecutionContext& context, const Inputs& in) {
         const Variable once = linear(context, in[0], in[1], in[2]);
         return Inputs{linear(context, once, in[1], in[2]), linear(context, in[0], in[1])};
       }},
      {"bias_activation",
       {Shape{2, 3, 20}, Shape{20}},
       {1},
       [](ExecutionContext& context, const Inputs& in) {
         return Inputs{bias_activation(context, in[0], in[1], ActivationKind::gelu_tanh)};
       }},
      {"normalization",
       {Shape{2, 3, 20}, Shape{20}, Shape{20}},
       {1, 2},
       [](ExecutionContext& context, const Inputs& in) { return Inputs{normalization(context, in[0], in[1], in[2], {})}; }},
      {"residual_normalization",
       boundary,
       {2, 3, 4},
       [](ExecutionContext& context, const Inputs& in) {
         const ResidualNormalization result = residual_normalization(context, in[0], in[1], in[2], 0.4, 9, in[3], in[4], {});
         return Inputs{result.residual, result.output};
       },
       2},
      {"residual_normalization whose norm is not used",
       boundary,
       {2, 3, 4},
       [](ExecutionContext& context, const Inputs& in) {
         return Inputs{residual_normalization(context, in[0], in[1], in[2], 0.4, 9, in[3], in[4], {}).residual};
       },
       2},
      {"attention",
       {Shape{2, 7, 32}, Shape{2, 7, 16}, Shape{2, 7, 16}},
       {},
       [](ExecutionContext& context, const Inputs& in) { return Inputs{attention(context, in[0], in[1], in[2], grouped_attention(0.0))}; },
       2},
      {"attention with dropout",
       {Shape{2, 7, 32}, Shape{2, 7, 16}, Shape{2, 7, 16}},
       {},
       [](ExecutionContext& context, const Inputs& in) { return Inputs{attention(context, in[0], in[1], in[2], grouped_attention(0.3))}; },
       2},
      {"add and dropout",
       {Shape{2, 3, 20}, Shape{2, 3, 20}},
       {},
       [](ExecutionContext& context, const Inputs& in) { return Inputs{dropout(context, add(context, in[0], in[1]), 0.5, 2)}; },
       2},
      {"recompute",
       {Shape{2, 3, 20}, Shape{2, 3, 20}, Shape{20}},
       {2},
       [](ExecutionContext& context, const Inputs& in) {
         return recompute(context, in, [](ExecutionContext& inner, const Inputs& inputs) {
           const ResidualNormalization sum = residual_normalization(inner, inputs[0], inputs[1], {}, 0.3, 5, inputs[2], {}, {});
           return Inputs{sum.residual, bias_activation(inner, sum.output, {}, ActivationKind::gelu)};
         });
       },
       2},
  };
}

struct Found {
  std::vector<std::vector<double>> outputs, gradients;
};

// Values that bfloat16 holds exactly, so that every dtype starts from the same ones.
std::vector<double> short_values(int64_t count, uint64_t salt) {
  std::vector<double> values = random_values(count, salt);
  for (double& value : values) value = static_cast<float>(bfloat16(static_cast<float>(value)));
  return values;
}

Found run(Backend& backend, DType dtype, const Case& each) {
  Tape tape;
  ExecutionContext context = make_context(backend, &tape, each.sequences);
  Inputs variables;
  for (size_t i = 0; i < each.shapes.size(); ++i)
    variables.emplace_back(make_tensor(backend, each.shapes[i], short_values(each.shapes[i].elements(), 100 + i), dtype),
                           std::make_shared<GradientSlot>());
  Found found;
  {
    const Inputs outputs = each.operation(context, variables);
    for (size_t k = 0; k < outputs.size(); ++k) {
      CHECK(outputs[k].value().dtype() == dtype);
      found.outputs.push_back(to_doubles(backend, outputs[k].value()));
      contribute(context, outputs[k],
                 make_tensor(backend, outputs[k].shape(), short_values(outputs[k].value().elements(), 200 + k), dtype));
    }
  }
  tape.backward(context);
  for (size_t i = 0; i < variables.size(); ++i) {
    const GradientSlot& slot = *variables[i].gradient();
    const bool parameter = std::find(each.parameters.begin(), each.parameters.end(), i) != each.parameters.end();
    if (slot.defined) CHECK(slot.tensor.dtype() == (parameter && dtype == DType::bfloat16 ? DType::float32 : dtype));
    found.gradients.push_back(slot.defined ? to_doubles(backend, slot.tensor) : std::vector<double>());
  }
  return found;
}

void check_near(const std::vector<double>& found, const std::vector<double>& expected, double tolerance) {
  REQUIRE(found.size() == expected.size());
  double difference = 0;
  for (size_t i = 0; i < found.size(); ++i) difference += (found[i] - expected[i]) * (found[i] - expected[i]);
  CHECK(std::sqrt(difference) <= tolerance * std::sqrt(dot(expected, expected)));
}

void check_operations(Backend& backend, DType dtype, double tolerance) {
  const auto reference = reference_backend();
  for (const Case& each : cases()) {
    INFO(backend.name() << " " << name_of(dtype) << ": " << each.name);
    const Found expected = run(*reference, DType::float64, each), found = run(backend, dtype, each);
    for (size_t k = 0; k < expected.outputs.size(); ++k) check_near(found.outputs[k], expected.outputs[k], tolerance);
    for (size_t i = 0; i < expected.gradients.size(); ++i) {
      INFO("gradient of input " << i);
      check_near(found.gradients[i], expected.gradients[i], tolerance);
    }
  }
}

}  // namespace

TEST_CASE("operations in float32", "[device]") { check_operations(*make_test_backend(), DType::float32, 1e-6); }

TEST_CASE("operations in bfloat16 keep the gradients of parameters in float32", "[device]") {
  const auto backend = GENERATE(false, true) ? make_test_backend() : reference_backend();
  if (backend->computes_in(DType::bfloat16)) check_operations(*backend, DType::bfloat16, 1e-2);
}

TEST_CASE("losses of bfloat16 logits are float32, their gradient takes the logits' place", "[device]") {
  const auto backend = GENERATE(false, true) ? make_test_backend() : reference_backend();
  if (!backend->computes_in(DType::bfloat16)) return;
  const int64_t rows = 5, columns = 40, classes = 33;
  const std::vector<double> values = short_values(rows * columns, 1);
  const auto of = [&](Backend& on, DType dtype, std::vector<double>& gradient) {
    Tape tape;
    ExecutionContext context = make_context(on, &tape);
    const Variable logits(make_tensor(on, Shape{rows, columns}, values, dtype), std::make_shared<GradientSlot>());
    const Tensor targets = index_tensor(on, Shape{rows}, {4, -1, 0, 2, 32});
    const Variable losses = softmax_cross_entropy(context, logits, targets, classes, 0.5);
    CHECK(losses.value().dtype() == (dtype == DType::float64 ? dtype : DType::float32));
    tape.backward(context);
    CHECK(logits.gradient()->tensor.raw() == logits.value().raw());
    gradient = to_doubles(on, logits.gradient()->tensor);
    return to_doubles(on, losses.value());
  };
  std::vector<double> expected_gradient, found_gradient;
  const std::vector<double> expected = of(*reference_backend(), DType::float64, expected_gradient);
  check_near(of(*backend, DType::bfloat16, found_gradient), expected, 1e-6);  // of exact logits, in float32
  check_near(found_gradient, expected_gradient, 4e-3);                        // rounded once
}

TEST_CASE("a dtype that the backend does not compute in is refused by the operation's name") {
  const auto backend = make_cpu_backend();
  ExecutionContext context = make_context(*backend);
  const auto of = [&](const Shape& shape, DType dtype = DType::bfloat16) {
    return Variable(backend->allocate(shape, dtype, MemoryCategory::data, "test"));
  };
  const Tensor tokens = index_tensor(*backend, Shape{1, 2}, {0, 1});
  CHECK_THROWS_AS(linear(context, of({3, 5}), of({7, 5})), DeviceError);
  CHECK_THROWS_WITH(linear(context, of({3, 5}), of({7, 5})), Contains("linear") && Contains("bfloat16") && Contains("\"cpu\""));
  CHECK_THROWS_WITH(linear(context, of({3, 5}, DType::float64), of({7, 5}, DType::float64)), Contains("float64"));
  CHECK_THROWS_WITH(add(context, of({3}), of({3})), Contains("add"));
  CHECK_THROWS_WITH(bias_activation(context, of({3, 5}), {}, ActivationKind::gelu), Contains("bias_activation"));
  CHECK_THROWS_WITH(normalization(context, of({3, 5}), of({5}), {}, {}), Contains("normalization"));
  CHECK_THROWS_WITH(residual_normalization(context, of({3, 5}), of({3, 5}), {}, 0, 0, of({5}), {}, {}), Contains("residual_normalization"));
  CHECK_THROWS_WITH(attention(context, of({1, 2, 4}), of({1, 2, 4}), of({1, 2, 4}), {}), Contains("attention"));
  CHECK_THROWS_WITH(embedding(context, tokens, of({3, 5}), {}, {}, 0.0, 0), Contains("embedding"));
  CHECK_THROWS_WITH(dropout(context, of({3, 5}), 0.5, 0), Contains("dropout"));
  CHECK_THROWS_WITH(softmax_cross_entropy(context, of({2, 5}), index_tensor(*backend, Shape{2}, {0, 1}), 5, 1.0),
                    Contains("softmax_cross_entropy"));
}

TEST_CASE("in bfloat16 a weight must be a parameter, and a parameter's gradient is float32 whoever contributes") {
  const auto backend = reference_backend();
  Tape tape;
  ExecutionContext context = make_context(*backend, &tape);
  const auto leaf = [&](const Shape& shape, uint64_t salt) {
    return Variable(make_tensor(*backend, shape, short_values(shape.elements(), salt), DType::bfloat16), std::make_shared<GradientSlot>());
  };
  {
    const Variable computed = add(context, leaf({3, 3}, 1), leaf({3, 3}, 2));
    const Variable output = linear(context, leaf({2, 3}, 3), computed);
    contribute(context, output, make_tensor(*backend, Shape{2, 3}, short_values(6, 4), DType::bfloat16));
  }
  CHECK_THROWS_WITH(tape.backward(context), Contains("add") && Contains("float32[3, 3]") && Contains("must be parameters"));

  auto state = std::make_shared<ParameterState>();
  state->name = "shift";
  state->value = make_tensor(*backend, Shape{2}, {1, 2}, DType::bfloat16);
  state->gradient->tensor = make_tensor(*backend, Shape{2}, {0.25, 0.5}, DType::float32);
  state->gradient->defined = true;
  contribute(context, Variable(state), make_tensor(*backend, Shape{2}, {3, 4}, DType::bfloat16));
  CHECK(state->gradient->tensor.dtype() == DType::float32);
  CHECK(to_doubles(*backend, state->gradient->tensor) == std::vector<double>{3.25, 4.5});
}

TEST_CASE("an attention cache takes the dtype of the first keys") {
  const auto backend = reference_backend();
  ExecutionContext context = make_context(*backend);
  const auto of = [&](DType dtype, uint64_t salt) { return Variable(make_tensor(*backend, Shape{1, 2, 4}, short_values(8, salt), dtype)); };
  const auto memory = [&] { return backend->allocate(Shape{1, 6, 4}, DType::float32, MemoryCategory::activations, "cache"); };
  AttentionCache cache{memory(), memory(), {0}};
  attention(context, of(DType::bfloat16, 1), of(DType::bfloat16, 2), of(DType::bfloat16, 3), {}, &cache);
  CHECK(cache.key.dtype() == DType::bfloat16);
  CHECK(cache.value.dtype() == DType::bfloat16);
  CHECK(cache.lengths == std::vector<int64_t>{2});
  CHECK_THROWS_WITH(attention(context, of(DType::float32, 1), of(DType::float32, 2), of(DType::float32, 3), {}, &cache),
                    Contains("keys are float32") && Contains("bfloat16[1, 6, 4]"));
}
