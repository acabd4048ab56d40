#include "newton_schulz/spectral_norm.h"

#include <array>
#include <cmath>

#include "dmuon/core/checked.h"
#include "dmuon/core/random.h"

namespace dmuon {
namespace {

constexpr int64_t chunk = 16384;  // of the sums of squares
constexpr int between_reads = 5;  // a round shrinks a vector at most by the size n of the Gram matrix: n^5 stays in range
constexpr uint64_t start_seed = 0x706f776572ull;

// Normally distributed, so that no singular vector that a structured matrix may have is orthogonal to it.
Tensor start_vector(Backend& backend, int64_t n, DType dtype) {
  const Random random(start_seed, RandomStream::initialization);
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(random.normal(static_cast<uint64_t>(i)));
  const Tensor vector = backend.allocate(Shape{n, 1}, dtype, MemoryCategory::workspace, "power iteration");
  from_doubles(backend, values, vector);
  return vector;
}

Matrices vectors(Backend& backend, size_t count, int64_t n, DType dtype) {
  const Tensor block = backend.allocate(Shape{static_cast<int64_t>(count), n}, dtype, MemoryCategory::workspace, "power iteration");
  Matrices all;
  for (size_t i = 0; i < count; ++i) all.push_back(block.flat(static_cast<int64_t>(i) * n, n).reshape(Shape{n, 1}));
  return all;
}

std::vector<double> norms_of(Backend& backend, Stream& stream, const Matrices& all) {
  const int64_t chunks = divide_up(all.front().elements(), chunk), count = static_cast<int64_t>(all.size());
  const Tensor sums = backend.allocate(Shape{count, chunks}, DType::float64, MemoryCategory::workspace, "power iteration");
  for (int64_t i = 0; i < count; ++i)
    backend.optimizer().square_sums(stream, {all[static_cast<size_t>(i)], sums.flat(i * chunks, chunks), chunk});
  std::vector<double> host(static_cast<size_t>(sums.elements())), norms;
  backend.copy_to_host(stream, sums, host.data());
  for (auto row = host.begin(); row != host.end(); row += chunks) {
    double total = 0;
    for (auto each = row; each != row + chunks; ++each) total += *each;
    norms.push_back(std::sqrt(total));
  }
  return norms;
}

}  // namespace

std::vector<double> spectral_norms(Backend& backend, Stream& stream, const NewtonSchulzSchedule& schedule, const Matrices& x,
                                   const std::vector<double>& scales, const Matrices& squares, int rounds) {
  const int64_t n = schedule.short_side;
  BatchedProduct gram;  // scale^2 X X^T
  gram.a = gram.b = x;
  for (const Tensor& buffer : squares) gram.d.push_back(buffer.flat(0, n * n).reshape(Shape{n, n}));
  (schedule.tall ? gram.transpose_a : gram.transpose_b) = true;
  for (const double scale : scales) gram.alphas.push_back(scale * scale);
  gram.symmetric = true;
  backend.matrix().batched_product(stream, gram);

  const Matrices start(x.size(), start_vector(backend, n, x.front().dtype()));
  const std::array<Matrices, 2> results = {vectors(backend, x.size(), n, x.front().dtype()),
                                           vectors(backend, x.size(), n, x.front().dtype())};
  const Matrices* current = &start;
  std::vector<double> before, after, factors(x.size(), 1.0);
  for (int round = 1; round <= rounds; ++round) {
    if (round == rounds) before = norms_of(backend, stream, *current);
    BatchedProduct step;
    step.a = gram.d;
    step.b = *current;
    step.d = results[static_cast<size_t>(round % 2)];
    step.alphas = factors;
    backend.matrix().batched_product(stream, step);
    current = &results[static_cast<size_t>(round % 2)];
    if (round == rounds) break;
    factors.assign(x.size(), 1.0);
    if (round % between_reads != 0) continue;
    const std::vector<double> sizes = norms_of(backend, stream, *current);
    for (size_t i = 0; i < x.size(); ++i) {  // brought near 1 again, by an exact power of two
      int exponent = 0;
      if (std::isfinite(sizes[i])) std::frexp(sizes[i], &exponent);
      factors[i] = std::ldexp(1.0, -exponent);
    }
  }
  after = norms_of(backend, stream, *current);
  std::vector<double> singular_values;
  for (size_t i = 0; i < x.size(); ++i) singular_values.push_back(after[i] == 0.0 ? 0.0 : std::sqrt(after[i] / (before[i] * factors[i])));
  return singular_values;
}

}  // namespace dmuon
