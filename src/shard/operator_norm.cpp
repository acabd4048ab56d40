#include "shard/operator_norm.h"

#include <algorithm>
#include <cmath>

#include "dmuon/core/checked.h"
#include "dmuon/core/random.h"

namespace dmuon {
namespace {

constexpr int rounds = 20, between_reads = 5;  // a round grows a vector by at most the number of elements, up to 2^20 here
constexpr int64_t chunk = 16384;               // of the sums of squares

double norm_of(Backend& backend, Stream& stream, const Tensor& vector) {
  const int64_t chunks = divide_up(vector.elements(), chunk);
  const Tensor sums = backend.allocate(Shape{chunks}, DType::float64, MemoryCategory::workspace, "power iteration");
  backend.optimizer().square_sums(stream, {vector, sums, chunk});
  std::vector<double> host(static_cast<size_t>(chunks));
  backend.copy_to_host(stream, sums, host.data());
  double square = 0.0;
  for (double sum : host) square += sum;
  return std::sqrt(square);
}

}  // namespace

double operator_norm(Backend& backend, Stream& stream, const Tensor& matrix) {
  const int64_t rows = matrix.shape()[0], columns = matrix.shape()[1];
  const Tensor left = backend.allocate(Shape{rows, 1}, DType::float32, MemoryCategory::workspace, "power iteration");
  const Tensor right = backend.allocate(Shape{columns, 1}, DType::float32, MemoryCategory::workspace, "power iteration");
  const Random random(1, RandomStream::sampling);
  std::vector<float> start(static_cast<size_t>(columns));
  for (size_t i = 0; i < start.size(); ++i) start[i] = static_cast<float>(random.normal(i));
  backend.copy_from_host(stream, start.data(), right);
  // d = alpha * op(matrix) * b
  const auto multiply = [&](bool transposed, const Tensor& b, const Tensor& d, double alpha) {
    BatchedProduct product;
    product.a = {matrix};
    product.b = {b};
    product.d = {d};
    product.transpose_a = transposed;
    product.alpha = alpha;
    backend.matrix().batched_product(stream, product);
  };
  double size = 0.0;
  for (int round = 0; round <= rounds; ++round) {
    double alpha = 1.0;
    if (round % between_reads == 0) {
      size = norm_of(backend, stream, right);
      alpha = size > 0.0 ? 1.0 / size : 0.0;
    }
    multiply(false, right, left, alpha);
    if (round < rounds) multiply(true, left, right, 1.0);
  }
  return norm_of(backend, stream, left);  // the last round began with a read: |matrix x| of |x| = 1
}

}  // namespace dmuon
