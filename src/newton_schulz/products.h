// The products of one orthogonalisation, queued up for a whole batch and handed to the backend as one sequence.
#pragma once

#include <array>
#include <vector>

#include "dmuon/newton_schulz/device.h"
#include "newton_schulz/schedule.h"

namespace dmuon {

using Matrices = std::vector<Tensor>;  // one per matrix of the batch

class Products {
 public:
  // Queues as in ProductSequence. Buffers come from `scratch`, if given.
  Products(Backend& backend, const NewtonSchulzSchedule& schedule, int64_t count, int queues, DType dtype,
           DeviceScratch* scratch = nullptr);

  // One buffer per matrix, of the matrix's shape.
  Matrices results() const;
  // One buffer per queue, which the matrices of the queue share: [short, short] and of the matrix's shape.
  Matrices square_scratch() const;
  Matrices long_scratch() const;

  // out = s^2 X X^T (tall: s^2 X^T X); `scales` holds s per matrix, empty for 1.
  void gram(const Matrices& x, const Matrices& out, const std::vector<double>& scales);
  // out = s Q X (tall: s X Q).
  void apply(const Matrices& q, const Matrices& x, const Matrices& out, const std::vector<double>& scales);
  // out = a b for commuting symmetric a, b.
  void multiply(const Matrices& a, const Matrices& b, const Matrices& out);
  // out = a I + b R + c R^2.
  void polynomial(const std::array<double, 3>& row, const Matrices& r, const Matrices& out);

  // Hands the queued products to the backend. run() then forgets them, which gives their scratch back; after queue() they may
  // be handed over again.
  void queue(Stream& stream) const;
  void run(Stream& stream);
  // Every tensor of the queued products, once.
  std::vector<Tensor> touched() const;

 private:
  Matrices allocate(int64_t blocks, int64_t rows, int64_t columns) const;

  Backend& backend_;
  const NewtonSchulzSchedule& schedule_;
  int64_t count_;
  DType dtype_;
  DeviceScratch* scratch_;
  ProductSequence sequence_;
};

// Both queue all products of their form. The direct one writes into `x` and `other` in turn and returns the one that holds
// the result; the Gram one keeps `x` and returns `result`.
const Matrices& queue_direct(Products& products, const NewtonSchulzSchedule& schedule, const Matrices& x, const Matrices& other,
                             const std::vector<double>& scales);
const Matrices& queue_gram(Products& products, const NewtonSchulzSchedule& schedule, const Matrices& x, const Matrices& result,
                           const std::vector<double>& scales);

}  // namespace dmuon
