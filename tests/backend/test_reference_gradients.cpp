// The backward kernels of the reference backend against central differences of its forward kernels, in float64, and the
// forward kernels against values known from elsewhere.
#include <cmath>
#include <functional>
#include <numbers>

#include "dmuon/core/random.h"
#include "support/catch.h"
#include "support/kernel_suite.h"

using namespace dmuon;

namespace {

class Reference {
 public:
  Tensor zeros(const Shape& shape) {
    Tensor tensor = backend->allocate(shape, DType::float64, MemoryCategory::workspace, "test");
    backend->zero(stream(), tensor);
    return tensor;
  }
  Tensor values(const Shape& shape, const std::vector<double>& values, DType dtype = DType::float64) {
    Tensor tensor = backend->allocate(shape, dtype, MemoryCategory::workspace, "test");
    from_doubles(*backend, values, tensor);
    return tensor;
  }
  Tensor normal(const Shape& shape) {
    const Random random(++drawn_, RandomStream::test);
    std::vector<double> drawn(static_cast<size_t>(shape.elements()));
    for (size_t i = 0; i < drawn.size(); ++i) drawn[i] = random.normal(i);
    return values(shape, drawn);
  }
  std::vector<double> read(const Tensor& tensor) { return to_doubles(*backend, tensor); }
  Stream& stream() { return backend->compute_stream(); }

  std::unique_ptr<Backend> backend = kernel_suite::open_reference();

 private:
  uint64_t drawn_ = 0;
};

// One output of a forward with the gradient that reaches it.
struct Seeded {
  Tensor output, gradient;
};

// Compares `found`, the gradient of sum(gradient * output) over `outputs`, with central differences in `input`.
void check_gradient(Reference& on, const char* name, const Tensor& input, const Tensor& found, const std::vector<Seeded>& outputs,
                    const std::function<void()>& forward) {
  const auto loss = [&] {
    forward();
    double sum = 0;
    for (const Seeded& seeded : outputs) {
      const auto output = on.read(seeded.output), gradient = on.read(seeded.gradient);
      for (size_t i = 0; i < output.size(); ++i) sum += output[i] * gradient[i];
    }
    return sum;
  };
  const std::vector<double> start = on.read(input), gradient = on.read(found);
  for (size_t i = 0; i < start.size(); ++i) {
    constexpr double step = 1e-5;
    auto moved = start;
    moved[i] = start[i] + step;
    from_doubles(*on.backend, moved, input);
    const double above = loss();
    moved[i] = start[i] - step;
    from_doubles(*on.backend, moved, input);
    const double below = loss();
    INFO("d_" << name << "[" << i << "]");
    CHECK(gradient[i] == Approx((above - below) / (2 * step)).epsilon(1e-6).margin(1e-8));
  }
  from_doubles(*on.backend, start, input);
  forward();
}

}  // namespace

TEST_CASE("attention gradients equal finite differences") {
  Reference on;
  const bool causal = GENERATE(true, false);
  const double dropout = GENERATE(0.0, 0.4);
  AttentionForward f;
  f.query = on.normal({2, 3, 4, 2});
  f.key = on.normal({2, 5, 2, 2});
  f.value = on.normal({2, 5, 2, 2});
  f.output = on.zeros({2, 3, 4, 2});
  f.log_sum_exp = on.zeros({2, 4, 3});
  f.scale = 0.7;
  f.causal = causal;
  f.key_offset = causal ? 1 : 0;
  f.dropout = {.probability = dropout, .seed = 3, .first_sequence = 9, .sequences = 2};
  AttentionBackward b;
  const auto forward = [&] { on.backend->attention().forward(on.stream(), f); };
  forward();
  b.forward = f;
  b.d_output = on.normal({2, 3, 4, 2});
  b.d_query = on.zeros({2, 3, 4, 2});
  b.d_key = on.zeros({2, 5, 2, 2});
  b.d_value = on.zeros({2, 5, 2, 2});
  on.backend->attention().backward(on.stream(), b);
  const std::vector<Seeded> outputs = {{f.output, b.d_output}};
  check_gradient(on, "query", f.query, b.d_query, outputs, forward);
  check_gradient(on, "key", f.key, b.d_key, outputs, forward);
  check_gradient(on, "value", f.value, b.d_value, outputs, forward);
}

TEST_CASE("normalization gradients equal finite differences, through residual, dropout and bias") {
  Reference on;
  const auto kind = GENERATE(NormalizationKind::layer_norm, NormalizationKind::rms_norm);
  const double dropout = GENERATE(0.0, 0.4);
  const Shape shape{4, 5};
  NormalizationForward f;
  f.kind = kind;
  f.input = on.normal(shape);
  f.branch = on.normal(shape);
  f.branch_bias = on.normal({5});
  f.dropout = {.probability = dropout, .seed = 3, .first_sequence = 9, .sequences = 2};
  f.residual = on.zeros(shape);
  f.weight = on.normal({5});
  f.bias = on.normal({5});
  f.output = on.zeros(shape);
  f.mean = on.zeros({4});
  f.inverse_deviation = on.zeros({4});
  const auto forward = [&] { on.backend->normalization().forward(on.stream(), f); };
  forward();
  NormalizationBackward b;
  b.kind = kind;
  b.d_output = on.normal(shape);
  b.d_residual = on.normal(shape);
  b.normalized_input = f.residual;
  b.mean = f.mean;
  b.inverse_deviation = f.inverse_deviation;
  b.weight = f.weight;
  b.dropout = f.dropout;
  b.d_input = on.zeros(shape);
  b.d_branch = on.zeros(shape);
  b.d_branch_bias = on.zeros({5});
  b.d_weight = on.zeros({5});
  b.d_bias = on.zeros({5});
  on.backend->normalization().backward(on.stream(), b);
  const std::vector<Seeded> outputs = {{f.output, b.d_output}, {f.residual, b.d_residual}};
  check_gradient(on, "input", f.input, b.d_input, outputs, forward);
  check_gradient(on, "branch", f.branch, b.d_branch, outputs, forward);
  check_gradient(on, "branch_bias", f.branch_bias, b.d_branch_bias, outputs, forward);
  check_gradient(on, "weight", f.weight, b.d_weight, outputs, forward);
  check_gradient(on, "bias", f.bias, b.d_bias, outputs, forward);
}

TEST_CASE("activation gradients equal finite differences") {
  Reference on;
  ActivationForward f;
  f.kind = GENERATE(ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::relu_squared);
  f.input = on.normal({6, 3});
  f.bias = on.normal({3});
  f.output = on.zeros({6, 3});
  ActivationBackward b;
  b.kind = f.kind;
  b.input = f.input;
  b.bias = f.bias;
  b.d_output = on.normal({6, 3});
  b.d_input = on.zeros({6, 3});
  b.d_bias = on.zeros({3});
  on.backend->activation().backward(on.stream(), b);
  const auto forward = [&] { on.backend->activation().forward(on.stream(), f); };
  check_gradient(on, "input", f.input, b.d_input, {{f.output, b.d_output}}, forward);
  check_gradient(on, "bias", f.bias, b.d_bias, {{f.output, b.d_output}}, forward);
}

TEST_CASE("embedding gradients equal finite differences") {
  Reference on;
  EmbeddingForward f;
  f.tokens = on.values({2, 3}, {0, 2, 2, 3, 2, 0}, DType::int32);
  f.positions = on.values({2, 3}, {0, 1, 2, 1, 2, 3}, DType::int32);
  f.token_table = on.normal({5, 4});
  f.position_table = on.normal({4, 4});
  f.dropout = {.probability = 0.3, .seed = 8, .first_sequence = 2, .sequences = 2};
  f.output = on.zeros({2, 3, 4});
  EmbeddingBackward b;
  b.tokens = f.tokens;
  b.positions = f.positions;
  b.dropout = f.dropout;
  b.d_output = on.normal({2, 3, 4});
  b.d_token_table = on.normal({5, 4});
  b.d_position_table = on.normal({4, 4});
  on.backend->embedding_loss().embedding_backward(on.stream(), b);
  const auto forward = [&] { on.backend->embedding_loss().embedding_forward(on.stream(), f); };
  check_gradient(on, "token_table", f.token_table, b.d_token_table, {{f.output, b.d_output}}, forward);
  check_gradient(on, "position_table", f.position_table, b.d_position_table, {{f.output, b.d_output}}, forward);
}

TEST_CASE("the cross-entropy gradient equals finite differences, also at masked rows and padded columns") {
  Reference on;
  SoftmaxCrossEntropy x;
  x.logits = on.normal({3, 6});
  x.targets = on.values({3}, {4, -1, 0}, DType::int32);
  x.losses = on.zeros({3});
  x.classes = 5;
  x.gradient_scale = 0.25;
  SoftmaxCrossEntropy with_gradient = x;
  with_gradient.write_gradient = true;
  with_gradient.logits = on.values({3, 6}, on.read(x.logits));
  on.backend->embedding_loss().softmax_cross_entropy(on.stream(), with_gradient);
  const Tensor scale = on.values({3}, {0.25, 0.25, 0.25});
  check_gradient(on, "logits", x.logits, with_gradient.logits, {{x.losses, scale}},
                 [&] { on.backend->embedding_loss().softmax_cross_entropy(on.stream(), x); });
}

TEST_CASE("forward kernels give values known from elsewhere") {
  Reference on;
  // GELU(1) = Phi(1); its tanh form as PyTorch prints it; squared ReLU.
  const double expected[] = {0.8413447460685429, 0.8411919906082768, 1.0};
  for (auto kind : {ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::relu_squared}) {
    ActivationForward f;
    f.kind = kind;
    f.input = on.values({2, 1}, {1.0, -40.0});
    f.output = on.zeros({2, 1});
    on.backend->activation().forward(on.stream(), f);
    CHECK(on.read(f.output)[0] == Approx(expected[static_cast<int>(kind)]).epsilon(1e-14));
    CHECK(on.read(f.output)[1] == 0.0);
  }

  // Equal keys: the second causal query averages two values; log_sum_exp = log(number of keys) + score.
  AttentionForward attention;
  attention.query = on.values({1, 2, 1, 1}, {3, 3});
  attention.key = on.values({1, 2, 1, 1}, {1, 1});
  attention.value = on.values({1, 2, 1, 1}, {10, 30});
  attention.output = on.zeros({1, 2, 1, 1});
  attention.log_sum_exp = on.zeros({1, 1, 2});
  attention.scale = 0.5;
  on.backend->attention().forward(on.stream(), attention);
  CHECK(on.read(attention.output)[0] == Approx(10));
  CHECK(on.read(attention.output)[1] == Approx(20));
  CHECK(on.read(attention.log_sum_exp)[1] == Approx(std::log(2.0) + 1.5));

  SoftmaxCrossEntropy loss;
  loss.logits = on.values({2, 4}, std::vector<double>(8, 7.0));
  loss.targets = on.values({2}, {1, -1}, DType::int32);
  loss.losses = on.zeros({2});
  loss.classes = 4;
  on.backend->embedding_loss().softmax_cross_entropy(on.stream(), loss);
  CHECK(on.read(loss.losses)[0] == Approx(std::log(4.0)));
  CHECK(on.read(loss.losses)[1] == 0.0);

  NormalizationForward norm;
  norm.input = on.values({1, 2}, {1, 3});
  norm.weight = on.values({2}, {2, 2});
  norm.bias = on.values({2}, {1, 1});
  norm.output = on.zeros({1, 2});
  norm.mean = on.zeros({1});
  norm.inverse_deviation = on.zeros({1});
  norm.epsilon = 3;  // variance 1: the deviation is 2
  on.backend->normalization().forward(on.stream(), norm);
  CHECK(on.read(norm.output) == std::vector<double>{0, 2});
  CHECK(on.read(norm.mean)[0] == 2);
  CHECK(on.read(norm.inverse_deviation)[0] == 0.5);
}

TEST_CASE("optimizer passes give values computed by hand") {
  Reference on;
  AdamWPass adamw;
  adamw.parameter = on.values({1}, {2});
  adamw.gradient = on.values({1}, {8});
  adamw.first_moment = on.values({1}, {2});
  adamw.second_moment = on.values({1}, {16});
  // rate, beta1, beta2, epsilon, decay, correction1, correction2, gradient scale
  adamw.hyper = on.values({AdamWPass::count}, {0.1, 0.5, 0.75, 1.0, 0.25, 0.5, 0.25, 0.5});
  on.backend->optimizer().adamw(on.stream(), adamw);
  // g = 4, m = 1 + 2 = 3, v = 12 + 4 = 16, step = 6 / (8 + 1)
  CHECK(on.read(adamw.first_moment)[0] == 3);
  CHECK(on.read(adamw.second_moment)[0] == 16);
  CHECK(on.read(adamw.parameter)[0] == Approx(2 - 0.1 * 0.25 * 2 - 0.1 * 6.0 / 9.0).epsilon(1e-14));

  SgdPass sgd;
  sgd.parameter = on.values({1}, {2});
  sgd.gradient = on.values({1}, {8});
  sgd.momentum_buffer = on.values({1}, {2});
  // rate, momentum, dampening, decay, gradient scale, first step, nesterov
  sgd.hyper = on.values({SgdPass::count}, {0.5, 0.5, 0.25, 0.25, 0.5, 0, 1});
  on.backend->optimizer().sgd(on.stream(), sgd);
  CHECK(on.read(sgd.momentum_buffer)[0] == 4);                             // 1 + 0.75 * 4
  CHECK(on.read(sgd.parameter)[0] == 2 - 0.5 * (4 + 0.5 * 4 + 0.25 * 2));  // Nesterov: g + momentum m

  for (bool sum_form : {false, true}) {
    MuonMomentum muon;
    muon.sum_form = sum_form;
    muon.gradient = on.values({1, 2}, {8, 8});
    muon.momentum_buffer = on.values({1, 2}, {2, 2});
    muon.update = on.zeros({1, 2});
    muon.square_sums = on.zeros({1});
    muon.hyper = on.values({MuonMomentum::count}, {0.75, 0.5});
    on.backend->optimizer().muon_momentum(on.stream(), muon);
    const double m = sum_form ? 1.5 + 4 : 1.5 + 1, u = sum_form ? 4 + 0.75 * m : 1 + 0.75 * m;
    CHECK(on.read(muon.momentum_buffer)[0] == m);
    CHECK(on.read(muon.update)[1] == u);
    CHECK(on.read(muon.square_sums)[0] == 2 * u * u);
  }

  MuonApply apply;
  apply.parameter = on.values({1}, {2});
  apply.update = on.values({1}, {4});
  apply.hyper = on.values({MuonApply::count}, {0.5, 0.25, 2});
  on.backend->optimizer().muon_apply(on.stream(), apply);
  CHECK(on.read(apply.parameter)[0] == 2 * (1 - 0.125) - 0.5 * 2 * 4);
}

TEST_CASE("a dropout mask depends on the global sequence, not on the batch it is in") {
  Reference on;
  const Tensor ones = on.values({4, 50}, std::vector<double>(200, 1.0));
  ApplyDropout whole;
  whole.in = ones;
  whole.out = on.zeros({4, 50});
  whole.mask = {.probability = 0.25, .seed = 6, .first_sequence = 10, .sequences = 4};
  on.backend->activation().dropout(on.stream(), whole);
  const auto expected = on.read(whole.out);
  double kept = 0;
  for (double value : expected) {
    CHECK((value == 0.0 || value == 1 / 0.75));
    kept += value > 0;
  }
  CHECK(kept > 120);
  CHECK(kept < 180);
  for (int64_t sequence = 0; sequence < 4; ++sequence) {
    ApplyDropout one = whole;
    one.in = ones.slice(sequence, 1);
    one.out = on.zeros({1, 50});
    one.mask.first_sequence = 10 + sequence;
    one.mask.sequences = 1;
    on.backend->activation().dropout(on.stream(), one);
    const auto row = on.read(one.out);
    CHECK(row == std::vector<double>(expected.begin() + sequence * 50, expected.begin() + (sequence + 1) * 50));
  }
}
