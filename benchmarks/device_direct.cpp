#include "device_direct.h"

#include <algorithm>

#include "dmuon/backend/device_updates.h"

namespace dmuon::bench {

DeviceDirect::DeviceDirect(Backend& backend, const Shape& shape) : backend_(backend), tall_(shape[0] > shape[1]) {
  const DType dtype = device_updates(backend)->product_dtype();
  const auto scratch = [&](const Shape& of) { return backend.allocate(of, dtype, MemoryCategory::workspace, "direct form"); };
  const int64_t side = std::min(shape[0], shape[1]);
  x_[0] = scratch(shape), x_[1] = scratch(shape);
  gram_ = scratch(Shape{side, side}), factor_ = scratch(Shape{side, side});
}

const Tensor& DeviceDirect::queue(Stream& stream, const CoefficientSet& set, const Tensor& update, const Tensor& square_sums) {
  Normalize normalize;
  normalize.in = update, normalize.square_sums = square_sums, normalize.out = x_[0];
  backend_.optimizer().normalize(stream, normalize);
  for (int i = 0; i < set.iterations; ++i) {
    const auto& [a, b, c] = set.rows[std::min(static_cast<size_t>(i), set.rows.size() - 1)];
    const Tensor &current = x_[i % 2], &next = x_[(i + 1) % 2];
    BatchedProduct square, polynomial, apply;
    square.a = square.b = {current}, square.d = {gram_}, (tall_ ? square.transpose_a : square.transpose_b) = true;
    polynomial.a = polynomial.b = polynomial.c = {gram_}, polynomial.d = {factor_};
    polynomial.alpha = c, polynomial.beta = b, polynomial.diagonal = a;
    apply.a = {tall_ ? current : factor_}, apply.b = {tall_ ? factor_ : current}, apply.d = {next};
    for (const BatchedProduct* product : {&square, &polynomial, &apply}) backend_.matrix().batched_product(stream, *product);
  }
  return x_[set.iterations % 2];
}

}  // namespace dmuon::bench
