#include "newton_schulz/products.h"

#include <set>
#include <utility>

namespace dmuon {

Products::Products(Backend& backend, const NewtonSchulzSchedule& schedule, int64_t count, int queues, DType dtype, DeviceScratch* scratch)
    : backend_(backend), schedule_(schedule), count_(count), dtype_(dtype), scratch_(scratch) {
  sequence_.queues = queues;
}

Matrices Products::allocate(int64_t blocks, int64_t rows, int64_t columns) const {
  const Shape shape{blocks, rows, columns};
  const Tensor block = scratch_ ? scratch_->take(shape, dtype_, "Newton-Schulz")
                                : backend_.allocate(shape, dtype_, MemoryCategory::workspace, "Newton-Schulz");
  Matrices matrices;
  for (int64_t i = 0; i < count_; ++i)
    matrices.push_back(block.flat(i % blocks * rows * columns, rows * columns).reshape(Shape{rows, columns}));
  return matrices;
}

Matrices Products::results() const { return allocate(count_, schedule_.rows_of_matrix(), schedule_.columns_of_matrix()); }
Matrices Products::square_scratch() const { return allocate(sequence_.queues, schedule_.short_side, schedule_.short_side); }
Matrices Products::long_scratch() const { return allocate(sequence_.queues, schedule_.rows_of_matrix(), schedule_.columns_of_matrix()); }

void Products::gram(const Matrices& x, const Matrices& out, const std::vector<double>& scales) {
  BatchedProduct product;
  product.a = product.b = x;
  product.d = out;
  (schedule_.tall ? product.transpose_a : product.transpose_b) = true;
  for (double scale : scales) product.alphas.push_back(scale * scale);
  product.symmetric = true;
  sequence_.steps.push_back(std::move(product));
}

void Products::apply(const Matrices& q, const Matrices& x, const Matrices& out, const std::vector<double>& scales) {
  BatchedProduct product;
  product.a = schedule_.tall ? x : q;
  product.b = schedule_.tall ? q : x;
  product.d = out;
  product.alphas = scales;
  sequence_.steps.push_back(std::move(product));
}

void Products::multiply(const Matrices& a, const Matrices& b, const Matrices& out) {
  BatchedProduct product;
  product.a = a;
  product.b = b;
  product.d = out;
  product.symmetric = true;
  sequence_.steps.push_back(std::move(product));
}

void Products::polynomial(const std::array<double, 3>& row, const Matrices& r, const Matrices& out) {
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
  sequence_.steps.push_back(std::move(product));
}

void Products::queue(Stream& stream) const { backend_.matrix().product_sequence(stream, sequence_); }

void Products::run(Stream& stream) {
  queue(stream);
  sequence_.steps.clear();
}

std::vector<Tensor> Products::touched() const {
  std::vector<Tensor> all;
  std::set<const void*> seen;
  for (const BatchedProduct& step : sequence_.steps)
    for (const auto* operands : {&step.a, &step.b, &step.c, &step.d})
      for (const Tensor& tensor : *operands)
        if (seen.insert(tensor.raw()).second) all.push_back(tensor);
  return all;
}

const Matrices& queue_direct(Products& products, const NewtonSchulzSchedule& schedule, const Matrices& x, const Matrices& other,
                             const std::vector<double>& scales) {
  const Matrices r = products.square_scratch(), p = products.square_scratch();
  const Matrices* current = &x;
  const Matrices* next = &other;
  for (int i = 0; i < schedule.iterations(); ++i) {
    const std::vector<double>& first_scales = i == 0 ? scales : std::vector<double>{};
    products.gram(*current, r, first_scales);
    products.polynomial(schedule.rows[static_cast<size_t>(i)], r, p);
    products.apply(p, *current, *next, first_scales);
    std::swap(current, next);
  }
  return *current;
}

const Matrices& queue_gram(Products& products, const NewtonSchulzSchedule& schedule, const Matrices& x, const Matrices& result,
                           const std::vector<double>& scales) {
  const Matrices r = products.square_scratch(), p = products.square_scratch();
  Matrices q = products.square_scratch(), t = products.square_scratch();
  Matrices current = x;
  std::array<Matrices, 2> between;  // X between segments, in turn
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
    const bool last = segment + 1 == schedule.segments.size();
    if (!last && segment < between.size()) between[segment] = products.long_scratch();
    const Matrices& next = last ? result : between[segment % between.size()];
    products.apply(q, current, next, first_scales);
    current = next;
  }
  return result;
}

}  // namespace dmuon
