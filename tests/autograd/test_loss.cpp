#include "autograd/gradient_check.h"

using namespace dmuon;
using namespace dmuon::test;

TEST_CASE("softmax_cross_entropy") {
  const auto backend = reference_backend();
  const int64_t rows = 4, columns = 7, classes = 5;
  const Shape shape{2, 2, columns};
  const double scale = 0.3;
  const Tensor targets = index_tensor(*backend, Shape{rows}, {4, -1, 0, 2});
  std::vector<double> values = random_values(rows * columns, 1);
  const auto losses = [&](const std::vector<double>& at) {
    ExecutionContext context = make_context(*backend);
    return to_doubles(*backend,
                      softmax_cross_entropy(context, Variable(make_tensor(*backend, shape, at)), targets, classes, scale).value());
  };
  const std::vector<double> plain = losses(values);
  CHECK(plain.size() == 4);
  CHECK(plain[1] == 0.0);  // masked

  for (const Before before : {Before::nothing, Before::garbage, Before::gradient}) {
    Tape tape;
    ExecutionContext context = make_context(*backend, &tape);
    auto slot = std::make_shared<GradientSlot>();
    std::vector<double> prior(values.size(), before == Before::gradient ? 2.0 : std::numeric_limits<double>::quiet_NaN());
    if (before != Before::nothing) slot->tensor = make_tensor(*backend, shape, prior);
    slot->defined = before == Before::gradient;
    const Variable result = softmax_cross_entropy(context, Variable(make_tensor(*backend, shape, values), slot), targets, classes, scale);
    CHECK_FALSE(result.requires_gradient());
    CHECK(to_doubles(*backend, result.value()) == plain);
    tape.backward(context);
    const std::vector<double> gradient = to_doubles(*backend, slot->tensor);
    for (size_t i = 0; i < values.size(); ++i) {
      std::vector<double> up = values, down = values;
      up[i] += 1e-5;
      down[i] -= 1e-5;
      const std::vector<double> above = losses(up), below = losses(down);
      double expected = before == Before::gradient ? 2.0 : 0.0;
      for (size_t n = 0; n < above.size(); ++n) expected += scale * (above[n] - below[n]) / 2e-5;
      INFO("element " << i);
      CHECK(gradient[i] == Approx(expected).epsilon(1e-6).margin(1e-8));
      if (static_cast<int64_t>(i) % columns >= classes) CHECK(gradient[i] == (before == Before::gradient ? 2.0 : 0.0));
    }
  }
}
