#include "autograd/gradient_check.h"

using namespace dmuon;
using namespace dmuon::test;
using Catch::Matchers::Contains;

namespace {

Variable leaf(Backend& backend, const std::vector<double>& values) {
  return Variable(make_tensor(backend, Shape{static_cast<int64_t>(values.size())}, values), std::make_shared<GradientSlot>());
}

}  // namespace

TEST_CASE("the first contribution is adopted, the second added") {
  const auto backend = reference_backend();
  ExecutionContext context = make_context(*backend);
  const Variable x = leaf(*backend, {1, 2});
  Tensor first = make_tensor(*backend, Shape{2}, {3, 4});
  const void* memory = first.raw();
  contribute(context, x, std::move(first));
  CHECK(x.gradient()->tensor.raw() == memory);
  contribute(context, x, make_tensor(*backend, Shape{2}, {10, 20}));
  CHECK(x.gradient()->tensor.raw() == memory);  // exclusive: added in place
  CHECK(to_doubles(*backend, x.gradient()->tensor) == std::vector<double>{13, 24});
  CHECK(to_doubles(*backend, take_gradient(x)) == std::vector<double>{13, 24});
  CHECK_FALSE(take_gradient(x).defined());
}

TEST_CASE("a gradient that two slots hold is never written") {
  const auto backend = reference_backend();
  ExecutionContext context = make_context(*backend);
  const Variable a = leaf(*backend, {0, 0}), b = leaf(*backend, {0, 0});
  const Tensor shared = make_tensor(*backend, Shape{2}, {1, 2});
  contribute(context, a, shared);
  contribute(context, b, shared);
  SECTION("by a kernel's target") {
    const GradientTarget target = gradient_target(context, a, Shape{2}, DType::float64);
    CHECK(target.accumulate);
    CHECK(target.tensor.raw() != shared.raw());
    CHECK(to_doubles(*backend, target.tensor) == std::vector<double>{1, 2});
  }
  SECTION("by a contribution, which takes the sum when it is exclusive") {
    Tensor other = make_tensor(*backend, Shape{2}, {10, 20});
    const void* memory = other.raw();
    contribute(context, a, std::move(other));
    CHECK(a.gradient()->tensor.raw() == memory);
    CHECK(to_doubles(*backend, a.gradient()->tensor) == std::vector<double>{11, 22});
  }
  SECTION("by a contribution of itself") {
    contribute(context, a, shared);
    CHECK(to_doubles(*backend, a.gradient()->tensor) == std::vector<double>{2, 4});
  }
  CHECK(to_doubles(*backend, b.gradient()->tensor) == std::vector<double>{1, 2});
  CHECK(to_doubles(*backend, shared) == std::vector<double>{1, 2});
}

TEST_CASE("memory assigned from outside is always written in place") {
  const auto backend = reference_backend();
  ExecutionContext context = make_context(*backend);
  const Tensor buffer = make_tensor(*backend, Shape{6}, std::vector<double>(6, std::nan("")));
  auto state = std::make_shared<ParameterState>();
  state->name = "weight";
  state->value = make_tensor(*backend, Shape{2, 2}, {0, 0, 0, 0});
  state->gradient->tensor = buffer.flat(1, 4).reshape(Shape{2, 2});
  const Variable weight(state);
  contribute(context, weight, make_tensor(*backend, Shape{2, 2}, {1, 2, 3, 4}));
  const GradientTarget target = gradient_target(context, weight, Shape{4}, DType::float64);
  CHECK(target.accumulate);
  CHECK(target.tensor.raw() == state->gradient->tensor.raw());
  CHECK(to_doubles(*backend, target.tensor) == std::vector<double>{1, 2, 3, 4});

  CHECK_THROWS_AS(gradient_target(context, weight, Shape{5}, DType::float64), ShapeError);
  CHECK_THROWS_WITH(gradient_target(context, weight, Shape{4}, DType::float32), Contains("\"weight\"") && Contains("float32[4]"));

  state->requires_gradient = false;  // frozen between steps
  CHECK_FALSE(weight.requires_gradient());
  CHECK(weight.gradient() == nullptr);
}

TEST_CASE("a parameter without gradient memory gets some in category gradients") {
  const auto backend = reference_backend();
  ExecutionContext context = make_context(*backend);
  auto state = std::make_shared<ParameterState>();
  state->value = make_tensor(*backend, Shape{2}, {0, 0});
  gradient_target(context, Variable(state), Shape{2}, DType::float64);
  CHECK(backend->allocator().statistics()[MemoryCategory::gradients].current == 16);
  CHECK(backend->allocator().statistics()[MemoryCategory::activations].current == 0);
}

TEST_CASE("entries run in reverse and die as they have run") {
  const auto backend = reference_backend();
  Tape tape;
  ExecutionContext context = make_context(*backend, &tape);
  std::vector<int> order;
  auto token = std::make_shared<int>(0);
  std::vector<long> alive;
  for (int i = 0; i < 3; ++i)
    tape.push([&, i, token](ExecutionContext& at) {
      CHECK(at.tape == nullptr);
      order.push_back(i);
      alive.push_back(token.use_count());
    });
  tape.backward(context);
  CHECK(order == std::vector<int>{2, 1, 0});
  CHECK(alive == std::vector<long>{4, 3, 2});
  CHECK(tape.empty());

  tape.push([](ExecutionContext&) {});
  tape.push([](ExecutionContext&) { throw NumericalError("stop"); });
  CHECK_THROWS_AS(tape.backward(context), NumericalError);
  CHECK_FALSE(tape.empty());
  tape.clear();
  CHECK(tape.empty());
}

TEST_CASE("nothing is recorded without a tape or without a gradient to compute") {
  const auto backend = reference_backend();
  Tape tape;
  ExecutionContext context = make_context(*backend, &tape);
  const Variable constant(random_tensor(*backend, Shape{3, 4}, 1)), weight(random_tensor(*backend, Shape{2, 4}, 2));
  CHECK_FALSE(linear(context, constant, weight).requires_gradient());
  CHECK(tape.empty());
  context.tape = nullptr;
  const Variable trained(weight.value(), std::make_shared<GradientSlot>());
  CHECK_FALSE(linear(context, constant, trained).requires_gradient());
}

TEST_CASE("a frozen weight gets no gradient while its input does") {
  const auto backend = reference_backend();
  Tape tape;
  ExecutionContext context = make_context(*backend, &tape);
  const Variable x(random_tensor(*backend, Shape{3, 4}, 1), std::make_shared<GradientSlot>());
  const Variable weight(random_tensor(*backend, Shape{2, 4}, 2));
  const Variable scale(make_tensor(*backend, Shape{2}, {1, 1}));
  const Variable y = normalization(context, linear(context, x, weight), scale, {}, {});
  contribute(context, y, random_tensor(*backend, Shape{3, 2}, 3));
  tape.backward(context);
  CHECK(x.gradient()->defined);
  CHECK(weight.gradient() == nullptr);
}

TEST_CASE("inputs given up lend their memory") {
  const auto backend = reference_backend();
  ExecutionContext context = make_context(*backend);
  Variable x(random_tensor(*backend, Shape{3, 4}, 1));
  const void* memory = x.value().raw();
  const Variable kept = bias_activation(context, x, {}, ActivationKind::gelu);
  CHECK(kept.value().raw() != memory);
  const std::vector<double> expected = to_doubles(*backend, kept.value());
  const Variable reused = bias_activation(context, std::move(x), {}, ActivationKind::gelu);
  CHECK(reused.value().raw() == memory);
  CHECK(to_doubles(*backend, reused.value()) == expected);

  // A parameter is never given up.
  auto state = std::make_shared<ParameterState>();
  state->value = random_tensor(*backend, Shape{3, 4}, 2);
  CHECK(dropout(context, Variable(state), 0.5, 1).value().raw() != state->value.raw());
}

TEST_CASE("dropout depends on seed, operation and global sequence only") {
  const auto backend = reference_backend();
  const Tensor ones = make_tensor(*backend, Shape{4, 6}, std::vector<double>(24, 1.0));
  const auto mask = [&](int64_t first_sequence, int64_t count, uint64_t seed, uint64_t operation) {
    ExecutionContext context = make_context(*backend, nullptr, count);
    context.first_sequence = first_sequence;
    context.dropout_seed = seed;
    return to_doubles(*backend, dropout(context, Variable(ones.slice(0, count)), 0.5, operation).value());
  };
  const std::vector<double> whole = mask(8, 4, 1, 1);
  const std::vector<double> second_half = mask(10, 2, 1, 1);
  CHECK(std::vector<double>(whole.begin() + 12, whole.end()) == second_half);
  CHECK(mask(8, 4, 2, 1) != whole);
  CHECK(mask(8, 4, 1, 2) != whole);
  ExecutionContext evaluation = make_context(*backend, nullptr, 4);
  evaluation.training = false;
  CHECK(to_doubles(*backend, dropout(evaluation, Variable(ones), 0.5, 1).value()) == to_doubles(*backend, ones));
}
