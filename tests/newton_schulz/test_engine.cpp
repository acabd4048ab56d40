// The engine on the reference backend: closed forms, agreement of the forms, exact invariances, the guard.
#include "dmuon/core/error.h"
#include "dmuon/newton_schulz/newton_schulz.h"
#include "optim/optimizer_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

using Values = std::vector<double>;

NewtonSchulzSpecification specification(const char* coefficients, IterationForm form = IterationForm::automatic) {
  NewtonSchulzSpecification result;
  result.coefficients = coefficients;
  result.form = form;
  return result;
}

struct Result {
  std::vector<Values> values;
  int64_t failures = 0;
};

Result orthogonalize(Backend& backend, const NewtonSchulzSpecification& spec, const std::vector<Values>& inputs, const Shape& shape,
                     DType dtype = DType::float64, int queues = 1) {
  std::vector<Tensor> matrices;
  for (const Values& input : inputs) matrices.push_back(tensor_of(backend, input, shape, dtype));
  Result result;
  const NewtonSchulzResult found = NewtonSchulzEngine(backend, queues).orthogonalize(backend.compute_stream(), spec, matrices);
  result.failures = found.guard_events;
  for (const Tensor& matrix : found.matrices) result.values.push_back(to_doubles(backend, matrix));
  return result;
}
Values orthogonalize(const NewtonSchulzSpecification& spec, const Values& input, const Shape& shape, DType dtype = DType::float64) {
  const auto backend = reference_backend();
  return orthogonalize(*backend, spec, {input}, shape, dtype).values.front();
}

Values transposed(const Values& matrix, int64_t rows, int64_t columns) {
  Values result(matrix.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) result[static_cast<size_t>(j * rows + i)] = matrix[static_cast<size_t>(i * columns + j)];
  return result;
}

// Rows times columns normal numbers of rank `rank`; direction i is weighted by decay^i.
Values low_rank(uint64_t seed, int64_t rows, int64_t columns, int64_t rank, double decay = 1.0) {
  const Values a = normal_values(seed, rows * rank), b = normal_values(seed + 1, rank * columns);
  Values result(static_cast<size_t>(rows * columns), 0.0);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t r = 0; r < rank; ++r)
      for (int64_t j = 0; j < columns; ++j)
        result[static_cast<size_t>(i * columns + j)] +=
            a[static_cast<size_t>(i * rank + r)] * std::pow(decay, static_cast<double>(r)) * b[static_cast<size_t>(r * columns + j)];
  return result;
}

// Bit for bit; a failure prints no matrices.
bool same(const Values& a, const Values& b) { return a == b && !a.empty(); }

Values scaled(Values values, double factor) {
  for (double& value : values) value *= factor;
  return values;
}

}  // namespace

TEST_CASE("closed forms") {
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
  for (const auto& [set, first, second] :
       {std::tuple{"keller5", 0.7228762, 1.1192039}, {"you5", 1.0186287, 1.0056322}, {"polar_express_105", 1.1057903, 1.1233816}}) {
    INFO(set);
    const Values found = orthogonalize(specification(set, form), {3, 0, 0, 4}, Shape{2, 2});
    CHECK(found[0] == Approx(first).epsilon(1e-7));
    CHECK(found[3] == Approx(second).epsilon(1e-7));
    CHECK(std::fabs(found[1]) + std::fabs(found[2]) == 0.0);
  }
  for (double value : orthogonalize(specification("keller5", form), Values(16, 1.0), Shape{2, 8}))
    CHECK(value == Approx(0.174109).epsilon(1e-5));  // rank one: phi(1) / 4
}

TEST_CASE("every set maps orthonormal rows by phi(1/sqrt(n)), in both forms") {
  for (const std::string& name : coefficient_set_names()) {
    const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
    INFO(name);
    Values rows(4 * 9, 0.0);
    for (size_t i = 0; i < 4; ++i) rows[i * 9 + 2 * i] = 7.0;  // not normalised: the engine divides by the norm
    const Values found = orthogonalize(specification(name.c_str(), form), rows, Shape{4, 9});
    const double expected = newton_schulz_scalar_map(coefficient_set(name), 0.5);
    for (size_t i = 0; i < rows.size(); ++i) CHECK(found[i] == Approx(rows[i] / 7.0 * expected).margin(1e-12));
  }
}

TEST_CASE("Gaussian matrices land in the band of their set") {
  // ||O||_F^2 / n lies between the squared ends of phi's band; orthogonality of the rows shows in the Gram matrix.
  for (const auto& [set, low, high] :
       {std::tuple{"keller5", 0.6818, 1.1344}, {"you5", 0.9778, 1.0318}, {"polar_express_105", 0.8461, 1.1236}}) {
    const Values found = orthogonalize(specification(set), normal_values(3, 32 * 96), Shape{32, 96});
    const double mean_square = norm_of(found) * norm_of(found) / 32;
    INFO(set);
    CHECK((mean_square >= low * low && mean_square <= high * high));
  }
}

TEST_CASE("direct and Gram agree, with the set's restarts, others and none") {
  const Values input = normal_values(11, 12 * 29);
  for (const std::string& name : coefficient_set_names()) {
    INFO(name);
    const Values direct = orthogonalize(specification(name.c_str(), IterationForm::direct), input, Shape{12, 29});
    NewtonSchulzSpecification gram = specification(name.c_str(), IterationForm::gram);
    CHECK(relative_error(orthogonalize(gram, input, Shape{12, 29}), direct) < 1e-10);
    gram.restarts = {1, 3, 4};
    CHECK(relative_error(orthogonalize(gram, input, Shape{12, 29}), direct) < 1e-10);
    gram.restarts = {};
    gram.disable_restarts = true;
    if (name != "deepseek10") CHECK(relative_error(orthogonalize(gram, input, Shape{12, 29}), direct) < 1e-7);
  }
}

TEST_CASE("float32 stays near float64 on spectra that strain it") {
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
  const Shape shape{24, 72};
  const std::vector<Values> inputs = {normal_values(5, 24 * 72), low_rank(6, 24, 72, 1),        low_rank(8, 24, 72, 2),
                                      low_rank(10, 24, 72, 12),  low_rank(12, 24, 72, 24, 0.5), low_rank(14, 24, 72, 24, 0.7)};
  for (const std::string& name : coefficient_set_names()) {
    const bool steep = name == "cans5" || name == "deepseek10" || name == "track3_12";  // lose digits in any form
    for (size_t i = 0; i < inputs.size(); ++i) {
      INFO(name << ", input " << i << ", " << name_of(form));
      Values rounded = inputs[i];
      for (double& value : rounded) value = static_cast<float>(value);
      const Values expected = orthogonalize(specification(name.c_str(), IterationForm::direct), rounded, shape);
      CHECK(relative_error(orthogonalize(specification(name.c_str(), form), rounded, shape, DType::float32), expected) <
            (steep ? 5e-2 : 5e-4));
    }
  }
}

TEST_CASE("a tall matrix gives the transpose of the wide one's bits") {
  // Given one norm: the sum of squares itself runs over the elements in their order in memory.
  const auto dtype = GENERATE(DType::float32, DType::float64);
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
  const auto backend = reference_backend();
  const Values input = normal_values(17, 7 * 19);
  const Tensor wide = tensor_of(*backend, input, Shape{7, 19}, dtype);
  const Tensor tall = tensor_of(*backend, transposed(input, 7, 19), Shape{19, 7}, dtype);
  const Tensor sums = tensor_of(*backend, {norm_of(input) * norm_of(input)}, Shape{1, 1}, DType::float64);
  const auto result_of = [&](const Tensor& matrix) {
    const NewtonSchulzResult result =
        NewtonSchulzEngine(*backend).orthogonalize(backend->compute_stream(), specification("polar_express_105", form), {&matrix, 1}, sums);
    return to_doubles(*backend, result.matrices.front());
  };
  CHECK(same(result_of(tall), transposed(result_of(wide), 7, 19)));
}

TEST_CASE("a flipped input flips the output, a power of two in the input changes no bit") {
  const auto dtype = GENERATE(DType::float32, DType::float64);
  const auto shape = GENERATE(Shape{7, 19}, Shape{9, 9});
  const Values input = normal_values(19, shape.elements());
  const NewtonSchulzSpecification spec = specification("keller5");
  const Values expected = orthogonalize(spec, input, shape, dtype);
  CHECK(same(orthogonalize(spec, scaled(input, -1.0), shape, dtype), scaled(expected, -1.0)));
  // Far out the squares of float32 values would leave its range; the engine rescales first.
  for (int exponent : {-100, -60, -24, -20, -7, 1, 18, 25, 70, 110}) {
    INFO("2^" << exponent);
    NewtonSchulzSpecification exact = spec;
    exact.epsilon = 0.0;
    CHECK(same(orthogonalize(exact, scaled(input, std::ldexp(1.0, exponent)), shape, dtype), expected));
  }
}

TEST_CASE("a zero matrix stays zero under every epsilon") {
  for (EpsilonMode mode : {EpsilonMode::add, EpsilonMode::clamp, EpsilonMode::scaled})
    for (double epsilon : {0.0, 1e-15, 1e-7}) {
      NewtonSchulzSpecification spec = specification("keller5");
      spec.epsilon_mode = mode;
      spec.epsilon = epsilon;
      const auto backend = reference_backend();
      const Result result = orthogonalize(*backend, spec, {Values(15, 0.0)}, Shape{3, 5}, DType::float32);
      CHECK(result.failures == 0);
      CHECK(same(result.values.front(), Values(15, 0.0)));
    }
}

TEST_CASE("epsilon modes divide as stated") {
  // A 1 x 1 matrix x maps to phi(x / divisor).
  const auto at = [](EpsilonMode mode, double epsilon, double safety) {
    NewtonSchulzSpecification spec = specification("keller5");
    spec.epsilon_mode = mode;
    spec.epsilon = epsilon;
    spec.safety = safety;
    return orthogonalize(spec, {0.5}, Shape{1, 1}).front();
  };
  const auto phi = [](double x) { return Approx(newton_schulz_scalar_map(coefficient_set("keller5"), x)).epsilon(1e-12); };
  CHECK(at(EpsilonMode::add, 0.125, 1.0) == phi(0.5 / 0.625));
  CHECK(at(EpsilonMode::clamp, 0.125, 1.0) == phi(1.0));
  CHECK(at(EpsilonMode::clamp, 0.75, 1.0) == phi(0.5 / 0.75));
  CHECK(at(EpsilonMode::scaled, 0.125, 1.5) == phi(0.5 / 0.875));
}

TEST_CASE("batches, queues and given sums change no bit") {
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
  const Shape shape{5, 12};
  std::vector<Values> inputs;
  for (uint64_t i = 0; i < 4; ++i) inputs.push_back(scaled(normal_values(30 + i, shape.elements()), std::pow(1e3, static_cast<double>(i))));
  const auto backend = reference_backend();
  const NewtonSchulzSpecification spec = specification("you5", form);
  const Result together = orthogonalize(*backend, spec, inputs, shape, DType::float32);
  for (size_t i = 0; i < inputs.size(); ++i)
    CHECK(same(orthogonalize(*backend, spec, {inputs[i]}, shape, DType::float32).values.front(), together.values[i]));
  for (int queues : {2, 3, 4, 9}) CHECK(orthogonalize(*backend, spec, inputs, shape, DType::float32, queues).values == together.values);

  const Tensor matrix = tensor_of(*backend, inputs[0], shape, DType::float32);
  const Tensor sums = backend->allocate(Shape{1, 1}, DType::float64, MemoryCategory::workspace, "test");
  backend->optimizer().square_sums(backend->compute_stream(), {matrix, sums.flat(0, 1), 16384});
  const NewtonSchulzResult result = NewtonSchulzEngine(*backend).orthogonalize(backend->compute_stream(), spec, {&matrix, 1}, sums);
  CHECK(same(to_doubles(*backend, result.matrices.front()), together.values[0]));
}

TEST_CASE("the guard reruns what a Gram form without restarts ruins, and only that") {
  const auto backend = reference_backend();
  const Shape shape{24, 96};
  const std::vector<Values> inputs = {low_rank(40, 24, 96, 2), Values(24 * 96, 0.0), low_rank(42, 24, 96, 1)};
  NewtonSchulzSpecification spec = specification("deepseek10", IterationForm::gram);
  spec.disable_restarts = true;
  const Result result = orthogonalize(*backend, spec, inputs, shape, DType::float32);
  CHECK(result.failures == 2);
  for (size_t i : {0u, 2u}) {
    const Result direct = orthogonalize(*backend, specification("deepseek10", IterationForm::direct), {inputs[i]}, shape, DType::float32);
    CHECK(same(result.values[i], direct.values.front()));
  }
  CHECK(same(result.values[1], inputs[1]));
  spec.disable_restarts = false;
  CHECK(orthogonalize(*backend, spec, inputs, shape, DType::float32).failures == 0);
}

TEST_CASE("input that is not finite is counted and stays not finite, its neighbours are untouched") {
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
  const auto bad = GENERATE(static_cast<double>(NAN), static_cast<double>(INFINITY));
  const auto backend = reference_backend();
  std::vector<Values> inputs = {normal_values(50, 28), normal_values(51, 28)};
  const Values expected = orthogonalize(*backend, specification("keller5", form), {inputs[0]}, Shape{4, 7}).values.front();
  inputs[1][9] = bad;
  const Result result = orthogonalize(*backend, specification("keller5", form), inputs, Shape{4, 7});
  CHECK(result.failures == 1);
  CHECK(same(result.values[0], expected));
  CHECK_FALSE(std::isfinite(norm_of(result.values[1])));
}

TEST_CASE("the engine touches memory only through kernels and survives any legal order") {
  const auto mode = GENERATE(HostMode::guarded, HostMode::deferred);
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
  const std::vector<Values> inputs = {normal_values(60, 40), scaled(normal_values(61, 40), 1e20)};
  const auto plain = reference_backend();
  const auto doubled = reference_backend({mode, 1, 7, "auto"});
  CHECK(orthogonalize(*doubled, specification("keller5", form), inputs, Shape{4, 10}, DType::float32).values ==
        orthogonalize(*plain, specification("keller5", form), inputs, Shape{4, 10}, DType::float32).values);
}

TEST_CASE("workspace returns to zero and is what was announced, to the byte") {
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
  const auto backend = reference_backend();
  const auto [count, queues] = GENERATE(std::pair{1, 1}, std::pair{5, 1}, std::pair{5, 2});
  std::vector<Tensor> matrices;
  for (int i = 0; i < count; ++i)
    matrices.push_back(tensor_of(*backend, normal_values(static_cast<uint64_t>(70 + i), 40 * 100), Shape{40, 100}, DType::float32));
  const auto before = backend->allocator().statistics()[MemoryCategory::workspace].current;
  backend->allocator().reset_peak();
  NewtonSchulzSpecification spec = specification("keller5", form);
  spec.restarts = {1, 2, 4};
  NewtonSchulzEngine(*backend, queues).orthogonalize(backend->compute_stream(), spec, matrices);
  const auto after = backend->allocator().statistics()[MemoryCategory::workspace];
  CHECK(after.current == before);
  CHECK(after.peak - before == newton_schulz_workspace(spec, 40, 100, DType::float32, count, queues));
}

TEST_CASE("a shape-only pass counts the same kernels and bytes as the real one") {
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
  const auto real = reference_backend();
  const auto counting = reference_backend({HostMode::shape_only, 1, 1, "auto"});
  const NewtonSchulzSpecification spec = specification("polar_express_105", form);
  for (Backend* backend : {real.get(), counting.get()}) {
    const Tensor matrix = backend->allocate(Shape{24, 96}, DType::float32, MemoryCategory::gradients, "test");
    if (backend == real.get()) from_doubles(*backend, normal_values(80, 24 * 96), matrix);
    CHECK(NewtonSchulzEngine(*backend).orthogonalize(backend->compute_stream(), spec, {&matrix, 1}).guard_events == 0);
  }
  const KernelCost asked = real->costs()["batched_product"], counted = counting->costs()["batched_product"];
  CHECK(asked.calls == counted.calls);
  CHECK(asked.flops == counted.flops);
  // The model counts a triangle as half a square; the kernels add the diagonal.
  CHECK(asked.flops == Approx(newton_schulz_flops(spec, 24, 96)).epsilon(1.0 / 24));
  CHECK(asked.flops > newton_schulz_flops(spec, 24, 96));
  CHECK(counting->allocator().statistics()[MemoryCategory::workspace].peak >= newton_schulz_workspace(spec, 24, 96, DType::float32) / 2);
}

TEST_CASE("FLOPs equal the published counts") {
  const double n = 24, m = 96;
  CHECK(newton_schulz_flops(specification("keller5", IterationForm::direct), 24, 96) == 15 * m * n * n + 5 * n * n * n);
  CHECK(newton_schulz_flops(specification("you5", IterationForm::gram), 96, 24) == 6 * m * n * n + 14 * n * n * n);
  CHECK(newton_schulz_flops(specification("keller5", IterationForm::gram), 24, 96) == 3 * m * n * n + 17 * n * n * n);
  NewtonSchulzSpecification restarted = specification("keller5", IterationForm::gram);
  restarted.restarts = {2};
  CHECK(newton_schulz_flops(restarted, 24, 96) == 6 * m * n * n + 14 * n * n * n);
  restarted.disable_restarts = true;
  CHECK(newton_schulz_flops(restarted, 24, 96) == 3 * m * n * n + 17 * n * n * n);
  CHECK(newton_schulz_form(specification("keller5"), 64, 64) == IterationForm::direct);
  CHECK(newton_schulz_form(specification("keller5"), 256, 64) == IterationForm::gram);
  CHECK(newton_schulz_form(specification("keller5"), 64, 256) == IterationForm::gram);
}

TEST_CASE("a specification that cannot be is refused by name") {
  const auto refused = [](auto change, const char* what) {
    NewtonSchulzSpecification spec;
    change(spec);
    CHECK_THROWS_AS(check(spec), ConfigError);
    CHECK_THROWS_WITH(check(spec), Catch::Contains(what));
  };
  refused([](auto& spec) { spec.coefficients = "kellr5"; }, "keller5");
  refused([](auto& spec) { spec.iterations = -1; }, "iterations");
  refused([](auto& spec) { spec.iterations = 100; }, "iterations");
  refused([](auto& spec) { spec.restarts = {2, 2}; }, "restarts");
  refused([](auto& spec) { spec.restarts = {5}; }, "restarts");
  refused([](auto& spec) { spec.restarts = {0}; }, "restarts");
  refused([](auto& spec) { spec.epsilon = -1.0; }, "epsilon");
  refused([](auto& spec) { spec.epsilon = NAN; }, "epsilon");
  refused([](auto& spec) { spec.safety = 0.5; }, "safety");
  CHECK(name_of(iteration_form_from_name("gram")) == "gram");
  CHECK_THROWS_AS(iteration_form_from_name("grams"), ConfigError);
  CHECK_THROWS_AS(epsilon_mode_from_name(""), ConfigError);
}

TEST_CASE("matrices that do not fit together are refused") {
  const auto backend = reference_backend();
  const auto call = [&](std::vector<Tensor> matrices, const Tensor& sums = {}) {
    NewtonSchulzEngine(*backend).orthogonalize(backend->compute_stream(), {}, matrices, sums);
  };
  const auto make = [&](const Shape& shape, DType dtype = DType::float32) {
    return tensor_of(*backend, Values(static_cast<size_t>(shape.elements()), 1.0), shape, dtype);
  };
  CHECK_THROWS_AS(call({make(Shape{4})}), ShapeError);
  CHECK_THROWS_AS(call({make(Shape{2, 3}), make(Shape{3, 2})}), ShapeError);
  CHECK_THROWS_AS(call({make(Shape{2, 3}), make(Shape{2, 3}, DType::float64)}), ShapeError);
  CHECK_THROWS_AS(call({make(Shape{2, 3}, DType::bfloat16)}), ShapeError);
  CHECK_THROWS_AS(call({make(Shape{2, 3})}, make(Shape{2, 1}, DType::float64)), ShapeError);
  CHECK_THROWS_AS(call({make(Shape{2, 3})}, make(Shape{1}, DType::float64)), ShapeError);
  CHECK_THROWS_AS(call({make(Shape{2, 3})}, make(Shape{1, 1})), ShapeError);
  CHECK_NOTHROW(call({}));
}
