#include "autograd/operations/linear_gradients.h"

namespace dmuon {

Variable linear(ExecutionContext& context, const Variable& x, const Variable& weight, const Variable& bias) {
  const Tensor& input = x.value();
  const Tensor& matrix = weight.value();
  require_shape(input.rank() >= 1 && matrix.rank() == 2 && matrix.size(1) == input.size(-1) && matrix.dtype() == input.dtype(),
                "linear: x ", x.to_string(), " needs a weight ", name_of(input.dtype()), "[out, ", input.rank() ? input.size(-1) : 1,
                "], found ", weight.to_string());
  require_vector("linear", "bias", bias, matrix.size(0), input);

  require_computes(context, "linear", x);
  Multiply forward;
  forward.a = as_matrix(input);
  forward.b = matrix;
  forward.transpose_b = true;
  forward.bias = value_or_undefined(bias);
  const Tensor value = context.allocate(with_last(input.shape(), matrix.size(0)), input.dtype(), "linear");
  forward.c = as_matrix(value);
  context.backend.matrix().multiply(context.stream, forward);

  const bool records = context.records({&x, &weight, &bias});
  Variable output = make_output(value, records);
  if (records)
    // x's value is needed for the weight's gradient only.
    context.tape->push([output = output.without_value(), x_gradient = x.without_value(), shape = input.shape(), dtype = input.dtype(),
                        saved = weight.requires_gradient() ? forward.a : Tensor(), weight,
                        bias = bias.without_value()](ExecutionContext& at) mutable {
      const Tensor taken = output_gradient("linear", output, dtype);
      if (!taken.defined()) return;
      const Tensor d_output = as_matrix(taken);
      add_parameter_gradients(at, d_output, std::move(saved), weight, bias);
      add_input_gradient(at, d_output, weight, x_gradient, shape);
    });
  return output;
}

}  // namespace dmuon
