// How far the Newton-Schulz forms are from the float64 direct form on spectra that strain them: the study behind the
// restarts of src/newton_schulz/coefficients.cpp. float32 is the engine itself; float16 and bfloat16 are emulated: every
// product is rounded to the precision after it was added up, which is what tensor cores with float32 sums do.
#include <algorithm>
#include <cmath>

#include "dmuon/core/text.h"
#include "dmuon/newton_schulz/newton_schulz.h"
#include "support.h"
#include "tests/newton_schulz/spectra.h"

namespace dmuon::bench {
namespace {

constexpr int64_t rows = 192, columns = 768;

using Values = std::vector<double>;
using Rounding = double (*)(double);

double exact(double value) { return value; }
double to_float16(double value) { return static_cast<double>(static_cast<float>(float16(static_cast<float>(value)))); }
double to_bfloat16(double value) { return static_cast<double>(static_cast<float>(bfloat16(static_cast<float>(value)))); }

// alpha a[m, k] b[k, n] + beta c + diagonal I, rounded.
Values product(const Values& a, const Values& b, int64_t m, int64_t k, Rounding round, double alpha = 1, double beta = 0,
               const Values& c = {}, double diagonal = 0) {
  const int64_t n = static_cast<int64_t>(b.size()) / k;
  Values out(static_cast<size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i) {
    double* __restrict to = out.data() + i * n;
    for (int64_t l = 0; l < k; ++l) {
      const double factor = a[static_cast<size_t>(i * k + l)];
      const double* __restrict from = b.data() + l * n;
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) to[j] += factor * from[j];
    }
    for (int64_t j = 0; j < n; ++j)
      to[j] = round(alpha * to[j] + (c.empty() ? 0.0 : beta * c[static_cast<size_t>(i * n + j)]) + (i == j ? diagonal : 0.0));
  }
  return out;
}

Values gram_of(const Values& x, Rounding round) {
  Values transposed(x.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) transposed[static_cast<size_t>(j * rows + i)] = x[static_cast<size_t>(i * columns + j)];
  return product(x, transposed, rows, columns, round);
}

double norm_of(const Values& values) {
  double square = 0;
  for (double value : values) square += value * value;
  return std::sqrt(square);
}

Values normalized(const Values& x, Rounding round) {
  const double norm = norm_of(x);
  Values out = x;
  for (double& value : out) value = round(value / norm);
  return out;
}

// The row of iteration i; past the last row it repeats.
const std::array<double, 3>& row_of(const CoefficientSet& set, int i) {
  return set.rows[std::min(static_cast<size_t>(i), set.rows.size() - 1)];
}

Values direct(const CoefficientSet& set, const Values& input, Rounding round) {
  Values x = normalized(input, round);
  for (int i = 0; i < set.iterations; ++i) {
    const auto& [a, b, c] = row_of(set, i);
    const Values r = gram_of(x, round);
    x = product(product(r, r, rows, rows, round, c, b, r, a), x, rows, rows, round);
  }
  return x;
}

Values gram(const CoefficientSet& set, const Values& input, const std::vector<int>& restarts, Rounding round) {
  Values x = normalized(input, round), q, r;
  for (int i = 0; i < set.iterations; ++i) {
    const bool restart = std::find(restarts.begin(), restarts.end(), i) != restarts.end();
    if (restart) x = product(q, x, rows, rows, round);
    if (i == 0 || restart) r = gram_of(x, round), q.clear();
    const auto& [a, b, c] = row_of(set, i);
    const Values p = product(r, r, rows, rows, round, c, b, r, a);
    q = q.empty() ? p : product(q, p, rows, rows, round);
    r = product(product(r, p, rows, rows, round), p, rows, rows, round);
  }
  return product(q, x, rows, rows, round);
}

struct Worst {
  double error = 0, spectral = 0;
  std::string spectrum;
  int64_t guard_events = 0;

  void add(const test::StrainedMatrix& matrix, const Values& found, const Values& expected) {
    double square = 0;
    for (size_t i = 0; i < found.size(); ++i) square += (found[i] - expected[i]) * (found[i] - expected[i]);
    const double here = std::sqrt(square) / norm_of(expected);
    if (!(here <= error)) error = std::isfinite(here) ? here : INFINITY, spectrum = matrix.spectrum;
    const double norm = std::isfinite(here) ? test::spectral_norm(found, rows, columns) : INFINITY;
    spectral = std::max(spectral, norm);
  }
};

class Study {
 public:
  explicit Study(const Arguments& arguments) : backend_(make_backend(arguments)), matrices_(test::strained_matrices(rows, columns)) {}

  void of(const CoefficientSet& set) {
    std::vector<Values> expected;
    for (const auto& matrix : matrices_) expected.push_back(direct(set, matrix.values, exact));
    Worst worst;
    for (size_t i = 0; i < matrices_.size(); ++i)
      worst.add(matrices_[i], engine(set, IterationForm::direct, {}, matrices_[i], worst), expected[i]);
    add(set, "float32", "direct", worst);
    const std::vector<std::vector<int>> short_patterns = {{}, {1}, {2}, {3}, {1, 2}, {2, 3}};
    const std::vector<std::vector<int>> long_patterns = {{}, {5}, {3, 6}, {4, 8}, {3, 6, 9}, {2, 4, 6, 8}};
    for (const std::vector<int>& restarts : set.iterations <= 5 ? short_patterns : long_patterns) {
      if (!restarts.empty() && restarts.back() >= set.iterations) continue;
      const std::string name = text("Gram ", written(restarts));
      worst = {};
      for (size_t i = 0; i < matrices_.size(); ++i)
        worst.add(matrices_[i], engine(set, IterationForm::gram, restarts, matrices_[i], worst), expected[i]);
      add(set, "float32", name, worst);
      for (const auto& [precision, round] : {std::pair<const char*, Rounding>{"float16", to_float16}, {"bfloat16", to_bfloat16}}) {
        worst = {};
        for (size_t i = 0; i < matrices_.size(); ++i) worst.add(matrices_[i], gram(set, matrices_[i].values, restarts, round), expected[i]);
        add(set, precision, name, worst);
      }
    }
  }

  Json::Array take() { return std::move(rows_); }

 private:
  static std::string written(const std::vector<int>& restarts) {
    std::vector<std::string> parts;
    for (int restart : restarts) parts.push_back(text(restart));
    return text("{", join(parts, ", "), "}");
  }

  Values engine(const CoefficientSet& set, IterationForm form, const std::vector<int>& restarts, const test::StrainedMatrix& matrix,
                Worst& worst) {
    NewtonSchulzSpecification specification;
    specification.coefficients = set.name;
    specification.form = form;
    specification.restarts = restarts;
    specification.disable_restarts = restarts.empty();
    const Tensor x = backend_->allocate({rows, columns}, DType::float32, MemoryCategory::workspace, "study");
    from_doubles(*backend_, matrix.values, x);
    const NewtonSchulzResult result = NewtonSchulzEngine(*backend_).orthogonalize(backend_->compute_stream(), specification, {&x, 1});
    worst.guard_events += result.guard_events;
    return to_doubles(*backend_, result.matrices.front());
  }

  void add(const CoefficientSet& set, const std::string& precision, const std::string& form, const Worst& worst) {
    Json row = Json::object();
    row.set("set", set.name);
    row.set("precision", precision);
    row.set("form", form);
    row.set("worst_error", worst.error);
    row.set("at", worst.spectrum);
    row.set("worst_spectral_norm", worst.spectral);
    row.set("guard_events", worst.guard_events);
    rows_.push_back(std::move(row));
  }

  std::unique_ptr<Backend> backend_;
  std::vector<test::StrainedMatrix> matrices_;
  Json::Array rows_;
};

Json::Array run(const Arguments& arguments) {
  const auto given = arguments.own.find("coefficients");
  Study study(arguments);
  for (const std::string& name : coefficient_set_names())
    if (given == arguments.own.end() || given->second == name) study.of(coefficient_set(name));
  return study.take();
}

}  // namespace

Benchmark newton_schulz_error_benchmark() {
  return {"newton-schulz-error",
          "distance of every coefficient set, precision and restart pattern from the float64 direct form, worst over ten spectra of "
          "192 x 768 matrices",
          {{"coefficients", "only this set"}},
          run};
}

}  // namespace dmuon::bench
