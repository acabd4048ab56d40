// The gradients of y = x weight^T + bias, shared by the operations that have such a product inside.
#pragma once

#include "autograd/operations/common.h"

namespace dmuon {

// Of the weight, d_output^T x, and of the bias, the column sums of d_output [N, out], where they are wanted; `x` [N, in] may be undefined
// when the weight needs no gradient. One product gives both where the device has it (dmuon/backend/product_epilogues.h).
void add_parameter_gradients(ExecutionContext& context, const Tensor& d_output, Tensor x, const Variable& weight, const Variable& bias);

// Of x, d_output weight, where it is wanted.
void add_input_gradient(ExecutionContext& context, const Tensor& d_output, const Variable& weight, const Variable& x, const Shape& shape);

}  // namespace dmuon
