#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/newton_schulz/device.h"
#include "newton_schulz/products.h"
#include "newton_schulz/spectral_norm.h"

namespace dmuon {
namespace {

constexpr int64_t chunk = 16384;            // of the sums of squares, as in MuonMomentum
constexpr int largest_plain_exponent = 20;  // beyond 2^+-20 a norm is first brought near 1, so that squares stay in range

Tensor sums_tensor(Backend& backend, size_t count, int64_t chunks) {
  return backend.allocate(Shape{static_cast<int64_t>(count), chunks}, DType::float64, MemoryCategory::workspace, "Newton-Schulz norms");
}

// The sums of squares of each matrix, chunk by chunk, into `sums`.
void queue_sums(Backend& backend, Stream& stream, const Matrices& matrices, const Tensor& sums) {
  const int64_t chunks = sums.size(1);
  for (size_t i = 0; i < matrices.size(); ++i)
    backend.optimizer().square_sums(stream, {matrices[i], sums.flat(static_cast<int64_t>(i) * chunks, chunks), chunk});
}

// One number per row of `sums`, read at once and added in order. Zero in a shape-only pass, which therefore never fails the
// guard.
std::vector<double> read_sums(Backend& backend, Stream& stream, const Tensor& sums) {
  if (backend.shape_only()) return std::vector<double>(static_cast<size_t>(sums.size(0)), 0.0);  // matrices of any size are counted
  std::vector<double> host(static_cast<size_t>(sums.elements())), totals;
  backend.copy_to_host(stream, sums, host.data());
  const auto chunks = static_cast<std::ptrdiff_t>(sums.size(1));
  for (auto row = host.begin(); row != host.end(); row += chunks) totals.push_back(std::accumulate(row, row + chunks, 0.0));
  return totals;
}

// 1 / norm, kept finite as the specification says.
double reciprocal(const NewtonSchulzSpecification& specification, double norm) {
  switch (specification.epsilon_mode) {
    case EpsilonMode::add:
      return 1.0 / (norm + specification.epsilon);
    case EpsilonMode::clamp:
      return 1.0 / std::max(norm, specification.epsilon);
    case EpsilonMode::scaled:
      return 1.0 / (norm * specification.safety + specification.epsilon);
  }
  return 1.0;
}

// Multiplies a matrix whose norm is far from 1 by an exact power of two that brings it near 1, because the products square
// their operands; the exponent of the inverse.
int bring_near_one(Backend& backend, Stream& stream, const Tensor& matrix, double norm) {
  if (norm == 0.0 || !std::isfinite(norm)) return 0;
  int exponent = 0;
  std::frexp(norm, &exponent);
  exponent = std::clamp(exponent, -126, 126);  // the power of two and its inverse stay normal float32 numbers
  if (std::abs(exponent) <= largest_plain_exponent) return 0;
  const Tensor scaled = backend.allocate(matrix.shape(), matrix.dtype(), MemoryCategory::workspace, "Newton-Schulz");
  ScaledAdd arguments;
  arguments.x = matrix;
  arguments.y = scaled;
  arguments.alpha = std::ldexp(1.0, -exponent);
  arguments.accumulate = false;
  backend.activation().scaled_add(stream, arguments);
  backend.copy(stream, scaled, matrix);
  return exponent;
}

// What each X is multiplied by before the first iteration. `scratch`: buffers of the matrices' shape.
std::vector<double> normalization_scales(Backend& backend, Stream& stream, const NewtonSchulzSpecification& specification,
                                         const NewtonSchulzSchedule& schedule, const Matrices& x, const std::vector<double>& square_sums,
                                         const Matrices& scratch) {
  std::vector<double> norms, scales, to_frobenius;
  std::vector<int> exponents;
  for (size_t i = 0; i < x.size(); ++i) {
    const double norm = std::sqrt(square_sums[i]);
    norms.push_back(norm);
    exponents.push_back(bring_near_one(backend, stream, x[i], norm));
    const auto scale = [&](double inverse) {
      if (norm == 0.0) return 1.0;                   // X is zero and stays zero
      if (!std::isfinite(norm)) return norm - norm;  // NaN: the result is not finite, and the guard says so
      return std::ldexp(inverse, exponents[i]);
    };
    scales.push_back(scale(reciprocal(specification, norm)));
    to_frobenius.push_back(scale(1.0 / norm));
  }
  if (specification.normalization != Normalization::spectral) return scales;
  const std::vector<double> spectral = spectral_norms(backend, stream, schedule, x, to_frobenius, scratch, power_iteration_rounds);
  for (size_t i = 0; i < x.size(); ++i)
    if (spectral[i] > 0.0 && std::isfinite(spectral[i]))
      scales[i] = std::ldexp(reciprocal(specification, power_iteration_safety * spectral[i] * norms[i]), exponents[i]);
  return scales;
}

void check_arguments(const NewtonSchulzSpecification& specification, std::span<const Tensor> matrices, const Tensor& square_sums) {
  for (const Tensor& matrix : matrices) {
    if (matrix.rank() != 2 || matrix.elements() == 0)
      throw ShapeError(text("orthogonalize: expected matrices [rows, columns] that are not empty, found ", matrix.to_string()));
    if (matrix.dtype() != DType::float32 && matrix.dtype() != DType::float64)
      throw ShapeError(text("orthogonalize: expected float32 (float64 on the reference backend), found ", matrix.to_string()));
    if (specification.dtype == DType::float16 && matrix.dtype() != DType::float32)
      throw ShapeError(text("orthogonalize: in float16 the matrices given are float32, found ", matrix.to_string()));
    if (matrix.shape() != matrices.front().shape() || matrix.dtype() != matrices.front().dtype())
      throw ShapeError(
          text("orthogonalize: a batch has one shape and dtype, found ", matrices.front().to_string(), " and ", matrix.to_string()));
  }
  if (!square_sums.defined()) return;
  if (square_sums.dtype() != DType::float64 || square_sums.rank() != 2 || square_sums.size(0) != static_cast<int64_t>(matrices.size()) ||
      square_sums.elements() == 0)
    throw ShapeError(text("orthogonalize: square sums must be float64 [", matrices.size(), ", chunks], found ", square_sums.to_string()));
}

// The same on a device, in its precision; the results are widened into the given matrices.
NewtonSchulzResult orthogonalize_on_device(Backend& backend, Stream& stream, const NewtonSchulzSpecification& specification,
                                           const Matrices& x, const Tensor& sums) {
  const int64_t rows = x.front().size(0), columns = x.front().size(1), count = static_cast<int64_t>(x.size());
  DeviceNewtonSchulz batch(backend, specification, rows, columns, count);
  batch.queue(stream, x, sums);
  const Tensor failed = backend.allocate(Shape{count}, DType::int32, MemoryCategory::workspace, "Newton-Schulz guard");
  for (int64_t i = 0; i < count; ++i) {
    GuardUpdate guard;
    guard.square_sums = batch.result_square_sums(i), guard.update = batch.results()[static_cast<size_t>(i)];
    guard.failed = failed.flat(i, 1), guard.limit = batch.guard_limit(), guard.withhold = false;
    device_updates(backend)->guard(stream, guard);
  }
  std::vector<int32_t> events(x.size());
  backend.copy_to_host(stream, failed, events.data());
  NewtonSchulzResult result;
  result.matrices = x;
  NewtonSchulzSpecification direct = specification;
  direct.form = IterationForm::direct;
  for (size_t i = 0; i < x.size(); ++i) {
    result.guard_events += events[i];
    if (events[i] != 0 && batch.gram()) {
      DeviceNewtonSchulz rerun(backend, direct, rows, columns, 1);
      const int64_t chunks = sums.size(1);
      rerun.queue(stream, {&x[i], 1}, sums.flat(static_cast<int64_t>(i) * chunks, chunks).reshape(Shape{1, chunks}));
      backend.optimizer().convert(stream, {rerun.results().front(), x[i]});
    } else {
      backend.optimizer().convert(stream, {batch.results()[i], x[i]});
    }
  }
  return result;
}

}  // namespace

int64_t newton_schulz_workspace(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, DType dtype, int64_t count,
                                int queues) {
  const NewtonSchulzSchedule schedule = resolve(specification, rows, columns);
  const int64_t square = schedule.short_side * schedule.short_side, whole = rows * columns;
  const int64_t between = std::min<int64_t>(2, static_cast<int64_t>(schedule.segments.size()) - 1);
  const int64_t per_matrix = whole * size_of(dtype) + divide_up(whole, chunk) * size_of(DType::float64);
  const int64_t per_queue = ((schedule.gram ? 4 : 2) * square + between * whole) * size_of(dtype);
  const int64_t vectors = specification.normalization == Normalization::spectral ? 2 * schedule.short_side * size_of(dtype) : 0;
  return count * (per_matrix + vectors) + std::min<int64_t>(queues, count) * per_queue;
}

NewtonSchulzResult NewtonSchulzEngine::orthogonalize(Stream& stream, const NewtonSchulzSpecification& specification,
                                                     std::span<const Tensor> matrices, const Tensor& square_sums) {
  if (matrices.empty()) return {};
  check(specification);
  check_arguments(specification, matrices, square_sums);
  const NewtonSchulzSchedule schedule = resolve(specification, matrices.front().size(0), matrices.front().size(1));
  const Matrices x(matrices.begin(), matrices.end());
  const int queues = std::min(queues_, static_cast<int>(x.size()));
  const int64_t chunks = divide_up(x.front().elements(), chunk);

  const Tensor sums = square_sums.defined() ? square_sums : sums_tensor(backend_, x.size(), chunks);
  if (!square_sums.defined()) queue_sums(backend_, stream, x, sums);
  if (specification.dtype == DType::float16) return orthogonalize_on_device(backend_, stream, specification, x, sums);
  const std::vector<double> norms = read_sums(backend_, stream, sums);
  Products products(backend_, schedule, static_cast<int64_t>(x.size()), queues, x.front().dtype());
  const Matrices other = products.results();
  const std::vector<double> scales = normalization_scales(backend_, stream, specification, schedule, x, norms, other);
  NewtonSchulzResult result;
  result.matrices = (schedule.gram ? queue_gram : queue_direct)(products, schedule, x, other, scales);
  products.run(stream);  // and gives its scratch back

  const Tensor result_sums = sums_tensor(backend_, x.size(), chunks);
  queue_sums(backend_, stream, result.matrices, result_sums);
  const std::vector<double> squares = read_sums(backend_, stream, result_sums);
  const double limit = guard_factor * static_cast<double>(schedule.short_side);
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::isfinite(squares[i]) && (!schedule.gram || squares[i] <= limit)) continue;
    ++result.guard_events;
    if (!schedule.gram) continue;
    // The Gram form has kept x; its failed result is the direct form's second buffer.
    const NewtonSchulzSchedule direct = direct_form(schedule);
    Products rerun(backend_, direct, 1, 1, x[i].dtype());
    result.matrices[i] = queue_direct(rerun, direct, {x[i]}, {result.matrices[i]}, {scales[i]}).front();
    rerun.run(stream);
  }
  return result;
}

}  // namespace dmuon
