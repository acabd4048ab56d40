// Normalisation by the largest singular value: closed forms in float64, exact invariances, degenerate matrices.
#include "newton_schulz/spectral_norm.h"
#include "optim/optimizer_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

using Values = std::vector<double>;

NewtonSchulzSpecification spectral(IterationForm form, int iterations = 5, const char* coefficients = "keller5") {
  NewtonSchulzSpecification result;
  result.coefficients = coefficients;
  result.form = form;
  result.iterations = iterations;
  result.epsilon = 0.0;
  result.normalization = Normalization::spectral;
  return result;
}

// H(u) D H(v) with the reflections H(u) = I - 2 u u^T of two unit vectors: dense, with the singular values of D.
Values with_singular_values(const Values& singular, int64_t rows, int64_t columns) {
  const auto unit = [](uint64_t seed, int64_t n) {
    Values vector = normal_values(seed, n);
    const double norm = norm_of(vector);
    for (double& each : vector) each /= norm;
    return vector;
  };
  const auto reflection = [](const Values& u, size_t i, size_t j) { return (i == j ? 1.0 : 0.0) - 2.0 * u[i] * u[j]; };
  const Values u = unit(3, rows), v = unit(4, columns);
  Values matrix;
  for (size_t i = 0; i < u.size(); ++i)
    for (size_t j = 0; j < v.size(); ++j) {
      double sum = 0;
      for (size_t k = 0; k < singular.size(); ++k) sum += reflection(u, i, k) * singular[k] * reflection(v, k, j);
      matrix.push_back(sum);
    }
  return matrix;
}

std::vector<Values> orthogonalize(Backend& backend, const NewtonSchulzSpecification& specification, const std::vector<Values>& inputs,
                                  const Shape& shape, DType dtype, int queues = 1, int64_t* guard_events = nullptr) {
  std::vector<Tensor> matrices;
  for (const Values& input : inputs) matrices.push_back(tensor_of(backend, input, shape, dtype));
  const NewtonSchulzResult found = NewtonSchulzEngine(backend, queues).orthogonalize(backend.compute_stream(), specification, matrices);
  if (guard_events) *guard_events = found.guard_events;
  std::vector<Values> results;
  for (const Tensor& matrix : found.matrices) results.push_back(to_doubles(backend, matrix));
  return results;
}

}  // namespace

TEST_CASE("spectral normalisation maps singular values from the largest one down", "[spectral]") {
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
  const int iterations = GENERATE(1, 2, 5);
  const Values singular = {10.0, 3.0, 0.5, 2e-3};
  Values mapped;
  for (double value : singular) {
    double x = value / (1.01 * 10.0);
    for (int i = 0; i < iterations; ++i) x = 3.4445 * x - 4.7750 * x * x * x + 2.0315 * x * x * x * x * x;
    mapped.push_back(x);
  }
  const auto backend = reference_backend();
  for (const Shape& shape : {Shape{4, 4}, Shape{4, 11}, Shape{9, 4}}) {
    INFO(shape.to_string() << " " << name_of(form) << " " << iterations);
    const Values input = with_singular_values(singular, shape[0], shape[1]), expected = with_singular_values(mapped, shape[0], shape[1]);
    CHECK(largest_difference(orthogonalize(*backend, spectral(form, iterations), {input}, shape, DType::float64).front(), expected) <
          1e-11);
    CHECK(largest_difference(orthogonalize(*backend, spectral(form, iterations), {input}, shape, DType::float32).front(), expected) < 2e-4);
    NewtonSchulzSpecification frobenius = spectral(form, iterations);
    frobenius.normalization = Normalization::frobenius;
    CHECK(largest_difference(orthogonalize(*backend, frobenius, {input}, shape, DType::float64).front(), expected) > 1e-3);
  }
}

TEST_CASE("power iteration finds the largest singular value of random matrices, from below", "[spectral]") {
  const auto backend = make_cpu_backend();
  for (const Shape& shape : {Shape{48, 48}, Shape{33, 96}, Shape{130, 65}, Shape{1, 9}}) {
    const Values input = normal_values(5, shape.elements());
    const auto rows = static_cast<size_t>(shape[0]), columns = static_cast<size_t>(shape[1]);
    double exact = 0;  // after far more rounds
    Values right(columns, 1.0);
    for (int round = 0; round < 300; ++round) {
      Values left(rows, 0.0), next(columns, 0.0);
      for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j < columns; ++j) left[i] += input[i * columns + j] * right[j];
      exact = norm_of(left) / norm_of(right);
      const double size = norm_of(left);
      for (size_t i = 0; i < rows; ++i)
        for (size_t j = 0; j < columns; ++j) next[j] += input[i * columns + j] * left[i] / size;
      right = next;
    }
    const Tensor matrix = tensor_of(*backend, input, shape, DType::float32), scratch = tensor_of(*backend, input, shape, DType::float32);
    const NewtonSchulzSchedule schedule = resolve(spectral(IterationForm::direct), shape[0], shape[1]);
    const double scale = 1.0 / norm_of(input);
    const double found = spectral_norms(*backend, backend->compute_stream(), schedule, {matrix}, {scale}, {scratch}, 20).front() / scale;
    INFO(shape.to_string() << " " << found << " of " << exact);
    CHECK(found <= exact * (1 + 1e-5));
    CHECK(found >= exact * 0.97);
  }
}

TEST_CASE("spectral normalisation: threads, batches and powers of two change no bit", "[spectral]") {
  const auto form = GENERATE(IterationForm::direct, IterationForm::gram);
  for (const Shape& shape : {Shape{17, 40}, Shape{64, 64}, Shape{70, 33}}) {
    std::vector<Values> inputs;
    for (uint64_t seed : {1, 2, 3, 4, 5}) {
      inputs.push_back(normal_values(seed, shape.elements()));
      for (double& each : inputs.back()) each = static_cast<float>(each);
    }
    const auto one = make_cpu_backend({HostMode::normal, 1, 1, "auto"}), three = make_cpu_backend({HostMode::normal, 3, 1, "auto"});
    const auto expected = orthogonalize(*one, spectral(form), inputs, shape, DType::float32);
    CHECK((orthogonalize(*three, spectral(form), inputs, shape, DType::float32) == expected));
    CHECK((orthogonalize(*three, spectral(form), inputs, shape, DType::float32, 3) == expected));
    for (size_t i : {0, 3}) CHECK((orthogonalize(*three, spectral(form), {inputs[i]}, shape, DType::float32).front() == expected[i]));
    for (int exponent : {-60, -21, -20, 7, 40}) {
      std::vector<Values> scaled = inputs;
      for (Values& values : scaled)
        for (double& each : values) each = std::ldexp(each, exponent);
      INFO(shape.to_string() << " 2^" << exponent);
      CHECK((orthogonalize(*one, spectral(form), scaled, shape, DType::float32) == expected));
    }
  }
}

TEST_CASE("spectral normalisation: zero stays zero, one element, what is not finite is counted", "[spectral]") {
  const auto backend = reference_backend();
  std::vector<Values> inputs = {Values(12, 0.0), normal_values(1, 12), normal_values(2, 12)};
  inputs[2][5] = NAN;
  int64_t guard_events = 0;
  const auto found = orthogonalize(*backend, spectral(IterationForm::direct), inputs, Shape{3, 4}, DType::float32, 1, &guard_events);
  CHECK(guard_events == 1);
  CHECK(norm_of(found[0]) == 0.0);
  CHECK(std::isfinite(norm_of(found[1])));
  CHECK_FALSE(std::isfinite(norm_of(found[2])));
  const double single = orthogonalize(*backend, spectral(IterationForm::direct, 1), {{-3.0}}, Shape{1, 1}, DType::float64).front()[0];
  const double x = 1 / 1.01;
  CHECK(single == Approx(-(3.4445 * x - 4.7750 * x * x * x + 2.0315 * x * x * x * x * x)).epsilon(1e-12));
}

TEST_CASE("spectral normalisation is part of the description and of the cost", "[spectral]") {
  NewtonSchulzSpecification frobenius;
  const NewtonSchulzSpecification other = spectral(IterationForm::automatic);
  CHECK(other.description().at("normalization").as_string() == "spectral");
  CHECK_FALSE(frobenius.description().find("normalization"));
  CHECK(newton_schulz_flops(other, 10, 30) == newton_schulz_flops(frobenius, 10, 30) + 30 * 10 * 10 + 20 * 2 * 10 * 10);
  CHECK(newton_schulz_workspace(other, 10, 30, DType::float32, 3) ==
        newton_schulz_workspace(frobenius, 10, 30, DType::float32, 3) + 3 * 2 * 10 * 4);
  CHECK(normalization_from_name("spectral") == Normalization::spectral);
  CHECK_THROWS_WITH(normalization_from_name("l2"), Catch::Contains("frobenius, spectral"));
}
