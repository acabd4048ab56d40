// The CPU backend: equal bits for every thread count and batch composition, also at long sums; near the reference.
#include "dmuon/newton_schulz/newton_schulz.h"
#include "dmuon/optim/muon.h"
#include "optim/optimizer_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

std::unique_ptr<Backend> cpu(int threads, const std::string& instruction_set = "auto") {
  return make_cpu_backend({HostMode::normal, threads, 1, instruction_set});
}

using Matrices = std::vector<std::vector<double>>;

// One Muon step on matrices that equal their gradients; the parameters afterwards.
Matrices muon_step(Backend& backend, const Shape& shape, const Matrices& values, IterationForm form, int64_t workspace) {
  MuonOptions options = muon_options("dmuon");
  options.newton_schulz.form = form;
  options.workspace_bytes = workspace;
  const auto rule = make_muon(options);
  std::vector<UpdateItem> items;
  for (const std::vector<double>& each : values) {
    UpdateItem item{"w", tensor_of(backend, each, shape, DType::float32), tensor_of(backend, each, shape, DType::float32), {}};
    item.state = {backend.allocate(shape, DType::float32, MemoryCategory::optimizer_state, "momentum")};
    backend.zero(backend.compute_stream(), item.state.front());
    items.push_back(item);
  }
  rule->prepare(backend, backend.compute_stream(), {1, 0.02, 0.5});
  rule->global(backend, backend.compute_stream(), items);
  CHECK(rule->counters().newton_schulz_guard_events == 0);
  Matrices result;
  for (const UpdateItem& item : items) result.push_back(to_doubles(backend, item.parameter));
  return result;
}

std::vector<double> orthogonalized(Backend& backend, const NewtonSchulzSpecification& specification, const std::vector<double>& values,
                                   const Shape& shape) {
  const Tensor matrix = tensor_of(backend, values, shape, DType::float32);
  return to_doubles(backend,
                    NewtonSchulzEngine(backend).orthogonalize(backend.compute_stream(), specification, {&matrix, 1}).matrices.front());
}

}  // namespace

TEST_CASE("a Muon step has the same bits on 1, 2 and 3 threads, alone and in a batch") {
  constexpr int64_t unbounded = int64_t{1} << 40;
  for (const Shape& shape : {Shape{128, 2048}, Shape{2048, 128}, Shape{65, 130}}) {
    const Matrices values = {normal_values(1, shape.elements()), normal_values(2, shape.elements())};
    for (IterationForm form : {IterationForm::direct, IterationForm::gram}) {
      INFO(shape.to_string() << " " << name_of(form));
      const Matrices expected = muon_step(*cpu(1), shape, values, form, unbounded);
      CHECK((muon_step(*cpu(1), shape, values, form, 1) == expected));
      CHECK((muon_step(*cpu(2), shape, values, form, 1) == expected));
      CHECK((muon_step(*cpu(3), shape, values, form, unbounded) == expected));
      CHECK((muon_step(*cpu(2), shape, {values[1]}, form, unbounded).front() == expected[1]));
    }
  }
}

TEST_CASE("256 x 8192 has the same bits on 1, 2 and 3 threads") {
  const Shape shape{256, 8192};
  const std::vector<double> input = normal_values(5, shape.elements());
  const NewtonSchulzSpecification specification;
  const std::vector<double> expected = orthogonalized(*cpu(1), specification, input, shape);
  for (int threads : {2, 3}) CHECK((orthogonalized(*cpu(threads), specification, input, shape) == expected));
}

TEST_CASE("the CPU is as near to float64 as the reference's float32 arithmetic") {
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
  const auto reference = reference_backend();
  for (const Shape& shape : {Shape{33, 70}, Shape{70, 33}, Shape{48, 48}, Shape{1, 9}, Shape{9, 1}}) {
    std::vector<double> input = normal_values(9, shape.elements());
    for (double& value : input) value = static_cast<float>(value);
    for (const std::string& name : coefficient_set_names()) {
      NewtonSchulzSpecification specification;
      specification.coefficients = name;
      specification.form = IterationForm::direct;
      const Tensor matrix = tensor_of(*reference, input, shape, DType::float64);
      const Tensor exact =
          NewtonSchulzEngine(*reference).orthogonalize(reference->compute_stream(), specification, {&matrix, 1}).matrices.front();
      specification.form = form;
      INFO(name << " " << shape.to_string() << " " << name_of(form));
      const bool steep = name == "cans5" || name == "deepseek10" || name == "track3_12";
      CHECK(relative_error(orthogonalized(*cpu(2), specification, input, shape), to_doubles(*reference, exact)) < (steep ? 5e-3 : 2e-4));
    }
  }
}

TEST_CASE("powers of two and signs are exact on the CPU too") {
  const auto backend = cpu(2);
  const Shape shape{30, 50};
  const std::vector<double> input = normal_values(6, shape.elements());
  NewtonSchulzSpecification specification;
  specification.epsilon = 0.0;
  const std::vector<double> expected = orthogonalized(*backend, specification, input, shape);
  for (double factor : {std::ldexp(1.0, -60), std::ldexp(1.0, 9), std::ldexp(1.0, 80), -1.0}) {
    std::vector<double> scaled = input, signed_expected = expected;
    for (double& value : scaled) value *= factor;
    if (factor < 0)
      for (double& value : signed_expected) value = -value;
    CHECK((orthogonalized(*backend, specification, scaled, shape) == signed_expected));
  }
}
