#include "autograd/operations/linear_gradients.h"

#include "dmuon/backend/product_epilogues.h"

namespace dmuon {

void add_parameter_gradients(ExecutionContext& context, const Tensor& d_output, Tensor x, const Variable& weight, const Variable& bias) {
  const DType dtype = d_output.dtype();
  const GradientTarget d_weight = parameter_target(context, weight, weight.shape(), dtype);
  if (d_weight.tensor.defined()) {
    Multiply product;
    product.a = d_output;
    product.transpose_a = true;
    product.b = std::move(x);
    product.c = d_weight.tensor;
    product.beta = d_weight.accumulate ? 1.0 : 0.0;
    ProductEpilogues* const epilogues = bias.requires_gradient() ? product_epilogues(context.backend) : nullptr;
    if (epilogues) {
      const GradientTarget d_bias = parameter_target(context, bias, Shape{d_output.size(1)}, dtype);
      if (epilogues->multiply_with_bias_gradient(context.stream, {product, d_bias.tensor, d_bias.accumulate})) return;
      context.backend.matrix().multiply(context.stream, product);
      context.backend.matrix().column_sum(context.stream, {d_output, d_bias.tensor, d_bias.accumulate});
      return;
    }
    context.backend.matrix().multiply(context.stream, product);
  }
  if (const GradientTarget d_bias = parameter_target(context, bias, Shape{d_output.size(1)}, dtype); d_bias.tensor.defined())
    context.backend.matrix().column_sum(context.stream, {d_output, d_bias.tensor, d_bias.accumulate});
}

void add_input_gradient(ExecutionContext& context, const Tensor& d_output, const Variable& weight, const Variable& x, const Shape& shape) {
  if (!x.requires_gradient()) return;
  const GradientTarget target = gradient_target(context, x, shape, d_output.dtype());
  Multiply product;
  product.a = d_output;
  product.b = weight.value();
  product.c = as_matrix(target.tensor);
  product.beta = target.accumulate ? 1.0 : 0.0;
  context.backend.matrix().multiply(context.stream, product);
}

}  // namespace dmuon
