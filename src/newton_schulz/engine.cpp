#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "newton_schulz/schedule.h"

namespace dmuon {
namespace {

using Matrices = std::vector<Tensor>;

constexpr int64_t chunk = 16384;            // of the sums of squares, as in MuonMomentum
constexpr double guard_factor = 1.5;        // ||O||_F^2 <= 1.5 min(m, n)
constexpr int largest_plain_exponent = 20;  // beyond 2^+-20 a norm is first brought near 1, so that squares stay in range

// Products of one batch; every m x n operand is read transposed when the matrices are tall.
class Products {
 public:
  Products(Backend& backend, Stream& stream, const NewtonSchulzSchedule& schedule, int64_t count, DType dtype)
      : backend_(backend), stream_(stream), schedule_(schedule), count_(count), dtype_(dtype) {}

  Matrices allocate(int64_t rows, int64_t columns) const {
    const Tensor block = backend_.allocate(Shape{count_, rows, columns}, dtype_, MemoryCategory::workspace, "Newton-Schulz");
    Matrices matrices;
    for (int64_t i = 0; i < count_; ++i) matrices.push_back(block.flat(i * rows * columns, rows * columns).reshape(Shape{rows, columns}));
    return matrices;
  }
  Matrices allocate_long() const {
    return schedule_.tall ? allocate(schedule_.long_side, schedule_.short_side) : allocate(schedule_.short_side, schedule_.long_side);
  }
  Matrices allocate_square() const { return allocate(schedule_.short_side, schedule_.short_side); }

  // out = s^2 X X^T (tall: s^2 X^T X); `scales` holds s per matrix, empty for 1.
  void gram(const Matrices& x, const Matrices& out, const std::vector<double>& scales) const {
    BatchedProduct product;
    product.a = product.b = x;
    product.d = out;
    (schedule_.tall ? product.transpose_a : product.transpose_b) = true;
    for (double scale : scales) product.alphas.push_back(scale * scale);
    product.symmetric = true;
    backend_.matrix().batched_product(stream_, product);
  }

  // out = s Q X (tall: s X Q).
  void apply(const Matrices& q, const Matrices& x, const Matrices& out, const std::vector<double>& scales) const {
    BatchedProduct product;
    product.a = schedule_.tall ? x : q;
    product.b = schedule_.tall ? q : x;
    product.d = out;
    product.alphas = scales;
    backend_.matrix().batched_product(stream_, product);
  }

  // out = a b for commuting symmetric a, b.
  void multiply(const Matrices& a, const Matrices& b, const Matrices& out) const {
    BatchedProduct product;
    product.a = a;
    product.b = b;
    product.d = out;
    product.symmetric = true;
    backend_.matrix().batched_product(stream_, product);
  }

  // out = a I + b R + c R^2.
  void polynomial(const std::array<double, 3>& row, const Matrices& r, const Matrices& out) const {
    BatchedProduct product;
    product.a = product.b = product.c = r;
    product.d = out;
    product.alpha = row[2];
    product.beta = row[1];
    product.diagonal = row[0];
    product.symmetric = true;
    if (row[2] == 0.0) {
      // A cubic step has no R^2: the same call over an inner dimension of 1 (a row of R times 0) costs n^2.
      const int64_t n = schedule_.short_side;
      for (Tensor& matrix : product.a) matrix = matrix.flat(0, n).reshape(Shape{n, 1});
      for (Tensor& matrix : product.b) matrix = matrix.flat(0, n).reshape(Shape{1, n});
    }
    backend_.matrix().batched_product(stream_, product);
  }

 private:
  Backend& backend_;
  Stream& stream_;
  const NewtonSchulzSchedule& schedule_;
  int64_t count_;
  DType dtype_;
};

// Result in `x`.
void run_direct(Backend& backend, Stream& stream, const NewtonSchulzSchedule& schedule, const Matrices& x,
                const std::vector<double>& scales) {
  const Products products(backend, stream, schedule, static_cast<int64_t>(x.size()), x.front().dtype());
  const Matrices r = products.allocate_square(), p = products.allocate_square();
  Matrices current = x, next = products.allocate_long();
  for (int i = 0; i < schedule.iterations(); ++i) {
    const std::vector<double>& first_scales = i == 0 ? scales : std::vector<double>{};
    products.gram(current, r, first_scales);
    products.polynomial(schedule.rows[static_cast<size_t>(i)], r, p);
    products.apply(p, current, next, first_scales);
    std::swap(current, next);
  }
  if (schedule.iterations() % 2 != 0)
    for (size_t i = 0; i < x.size(); ++i) backend.copy(stream, current[i], x[i]);
}

// Result returned; `x` is kept, so that the guard can rerun from it.
Matrices run_gram(Backend& backend, Stream& stream, const NewtonSchulzSchedule& schedule, const Matrices& x,
                  const std::vector<double>& scales) {
  const Products products(backend, stream, schedule, static_cast<int64_t>(x.size()), x.front().dtype());
  const Matrices r = products.allocate_square(), p = products.allocate_square();
  Matrices q = products.allocate_square(), t = products.allocate_square();
  Matrices current = x, next = products.allocate_long(), spare;
  for (size_t segment = 0; segment < schedule.segments.size(); ++segment) {
    const int first = schedule.segments[segment], end = schedule.segment_end(segment);
    const std::vector<double>& first_scales = segment == 0 ? scales : std::vector<double>{};
    products.gram(current, r, first_scales);
    for (int i = first; i < end; ++i) {
      products.polynomial(schedule.rows[static_cast<size_t>(i)], r, i == first ? q : p);
      const Matrices& step = i == first ? q : p;
      if (i + 1 < end) {  // R <- P R P
        products.multiply(r, step, t);
        products.multiply(t, step, r);
      }
      if (i > first) {  // Q <- Q P
        products.multiply(q, p, t);
        std::swap(q, t);
      }
    }
    products.apply(q, current, next, first_scales);
    // The first segment read the caller's matrices; later ones alternate between two buffers of our own.
    if (segment == 0 && schedule.segments.size() > 1) spare = products.allocate_long();
    current = std::exchange(next, segment == 0 ? spare : current);
  }
  return current;
}

// Sums of squares of each matrix; zero in a shape-only pass, which therefore never fails the guard.
std::vector<double> sums_of_squares(Backend& backend, Stream& stream, std::span<const Tensor> matrices,
                                    std::span<const Tensor> given = {}) {
  const int64_t chunks = divide_up(matrices.front().elements(), chunk);
  std::vector<double> sums;
  Tensor block;
  if (given.empty()) {
    block = backend.allocate(Shape{static_cast<int64_t>(matrices.size()), chunks}, DType::float64, MemoryCategory::workspace,
                             "Newton-Schulz norms");
    for (size_t i = 0; i < matrices.size(); ++i)
      backend.optimizer().square_sums(stream, {matrices[i], block.flat(static_cast<int64_t>(i) * chunks, chunks), chunk});
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    const Tensor part = given.empty() ? block.flat(static_cast<int64_t>(i) * chunks, chunks) : given[i];
    std::vector<double> host(static_cast<size_t>(part.elements()));
    backend.copy_to_host(stream, part, host.data());
    sums.push_back(std::accumulate(host.begin(), host.end(), 0.0));
  }
  return sums;
}

// What X is multiplied by before the first iteration. A norm far from 1 is first brought near 1 by an exact power of two
// in place, because the products square their operands.
double normalization_scale(Backend& backend, Stream& stream, const NewtonSchulzSpecification& specification, const Tensor& matrix,
                           double sum_of_squares) {
  const double norm = std::sqrt(sum_of_squares);
  double scale = 0.0;
  switch (specification.epsilon_mode) {
    case EpsilonMode::add:
      scale = 1.0 / (norm + specification.epsilon);
      break;
    case EpsilonMode::clamp:
      scale = 1.0 / std::max(norm, specification.epsilon);
      break;
    case EpsilonMode::scaled:
      scale = 1.0 / (norm * specification.safety + specification.epsilon);
      break;
  }
  if (norm == 0.0) return 1.0;                   // X is zero and stays zero
  if (!std::isfinite(norm)) return norm - norm;  // NaN: the result is not finite, and the guard says so
  int exponent = 0;
  std::frexp(norm, &exponent);
  exponent = std::clamp(exponent, -126, 126);  // the power of two and its inverse stay normal float32 numbers
  if (std::abs(exponent) <= largest_plain_exponent) return scale;
  const Tensor scaled = backend.allocate(matrix.shape(), matrix.dtype(), MemoryCategory::workspace, "Newton-Schulz");
  ScaledAdd arguments;
  arguments.x = matrix;
  arguments.y = scaled;
  arguments.alpha = std::ldexp(1.0, -exponent);
  arguments.accumulate = false;
  backend.activation().scaled_add(stream, arguments);
  backend.copy(stream, scaled, matrix);
  return std::ldexp(scale, exponent);
}

void check_arguments(std::span<const Tensor> matrices, std::span<const Tensor> square_sums) {
  for (const Tensor& matrix : matrices) {
    if (matrix.rank() != 2 || matrix.elements() == 0)
      throw ShapeError(text("orthogonalize: expected matrices [rows, columns] that are not empty, found ", matrix.to_string()));
    if (matrix.dtype() != DType::float32 && matrix.dtype() != DType::float64)
      throw ShapeError(text("orthogonalize: expected float32 (float64 on the reference backend), found ", matrix.to_string()));
    if (matrix.shape() != matrices.front().shape() || matrix.dtype() != matrices.front().dtype())
      throw ShapeError(
          text("orthogonalize: a batch has one shape and dtype, found ", matrices.front().to_string(), " and ", matrix.to_string()));
  }
  if (square_sums.empty()) return;
  if (square_sums.size() != matrices.size())
    throw ShapeError(text("orthogonalize: ", matrices.size(), " matrices but ", square_sums.size(), " tensors of square sums"));
  for (const Tensor& sums : square_sums)
    if (sums.dtype() != DType::float64 || sums.elements() == 0)
      throw ShapeError(text("orthogonalize: square sums must be float64 chunk sums, found ", sums.to_string()));
}

}  // namespace

int64_t newton_schulz_workspace(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, DType dtype) {
  const NewtonSchulzSchedule schedule = resolve(specification, rows, columns);
  const int64_t square = schedule.short_side * schedule.short_side, whole = rows * columns;
  const int64_t long_buffers = schedule.gram && schedule.segments.size() > 1 ? 2 : 1;
  return ((schedule.gram ? 4 : 2) * square + long_buffers * whole) * size_of(dtype) + divide_up(whole, chunk) * size_of(DType::float64);
}

int64_t NewtonSchulzEngine::orthogonalize(Stream& stream, const NewtonSchulzSpecification& specification, std::span<const Tensor> matrices,
                                          std::span<const Tensor> square_sums) {
  if (matrices.empty()) return 0;
  check(specification);
  check_arguments(matrices, square_sums);
  const NewtonSchulzSchedule schedule = resolve(specification, matrices.front().size(0), matrices.front().size(1));
  const Matrices x(matrices.begin(), matrices.end());

  const std::vector<double> sums = sums_of_squares(backend_, stream, matrices, square_sums);
  std::vector<double> scales;
  for (size_t i = 0; i < x.size(); ++i) scales.push_back(normalization_scale(backend_, stream, specification, x[i], sums[i]));

  Matrices result = x;
  if (schedule.gram)
    result = run_gram(backend_, stream, schedule, x, scales);
  else
    run_direct(backend_, stream, schedule, x, scales);

  const double limit = guard_factor * static_cast<double>(schedule.short_side);
  const std::vector<double> result_sums = sums_of_squares(backend_, stream, result);
  int64_t failures = 0;
  Matrices rerun;
  std::vector<double> rerun_scales;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isfinite(result_sums[i]) && (!schedule.gram || result_sums[i] <= limit)) {
      if (schedule.gram) backend_.copy(stream, result[i], x[i]);
      continue;
    }
    ++failures;
    if (!schedule.gram) continue;
    rerun.push_back(x[i]);
    rerun_scales.push_back(scales[i]);
  }
  if (!rerun.empty()) run_direct(backend_, stream, direct_form(schedule), rerun, rerun_scales);
  return failures;
}

}  // namespace dmuon
