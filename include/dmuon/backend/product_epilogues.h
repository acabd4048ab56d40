// What a device's products may do on the way, beyond the kernels that every backend has: passes over a result that it still holds in
// registers. Host backends have none of it. Every call queues its work and returns true, or queues nothing and returns false where
// the device has no such product for these sizes, types and addresses; then the caller takes the separate kernels. What it answers
// depends on these alone, so that equal calls give equal bits. No sum depends on the order in which threads arrive.
#pragma once

#include "dmuon/backend/backend.h"

namespace dmuon {

// c = op(a) op(b) + beta * c and d_bias[m] = the sums of op(a) along k: the gradients of a weight and of the bias beside it, with
// a = d_output transposed. alpha must be 1, `product.bias` undefined, d_bias of c's dtype.
struct BiasGradientProduct {
  Multiply product;
  Tensor d_bias;                 // [m]
  bool accumulate_bias = false;  // accumulated when set
};

// pre_activation = op(a) op(b) + bias and c = gelu_tanh(pre_activation), of the value before it is rounded. alpha must be 1, beta 0.
struct GeluProduct {
  Multiply product;
  Tensor pre_activation;  // [m, n], c's dtype
};

// c = (op(a) op(b)) * gelu_tanh'(pre_activation). alpha must be 1, beta 0, `product.bias` undefined.
struct GeluGradientProduct {
  Multiply product;
  Tensor pre_activation;  // [m, n], c's dtype
};

class ProductEpilogues {
 public:
  virtual ~ProductEpilogues();
  virtual bool multiply_with_bias_gradient(Stream& stream, const BiasGradientProduct& arguments) = 0;
  virtual bool multiply_gelu(Stream& stream, const GeluProduct& arguments) = 0;
  virtual bool multiply_gelu_gradient(Stream& stream, const GeluGradientProduct& arguments) = 0;
};

// Null where the backend has none.
ProductEpilogues* product_epilogues(Backend& backend);

}  // namespace dmuon
