// The two layers of a feed-forward block with one activation between them, as one operation, so that a device may compute the
// activation and its gradient inside the products.
#pragma once

#include "dmuon/autograd/operations.h"

namespace dmuon {

struct FeedForwardLayers {
  Variable up_weight, up_bias;      // [inner, in], [inner] optional
  Variable down_weight, down_bias;  // [out, inner], [out] optional
};

// x [N, in] -> activation(x up_weight^T + up_bias) down_weight^T + down_bias [N, out]. Where the device has no product for it
// (dmuon/backend/product_epilogues.h; only gelu_tanh can have one) this is linear, bias_activation and linear, bit for bit.
Variable feed_forward(ExecutionContext& context, Variable x, const FeedForwardLayers& layers, ActivationKind kind);

}  // namespace dmuon
