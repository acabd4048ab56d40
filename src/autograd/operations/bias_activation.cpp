#include "autograd/operations/common.h"

namespace dmuon {

Variable bias_activation(ExecutionContext& context, Variable x, const Variable& bias, ActivationKind kind) {
  require_shape(x.value().rank() >= 1, "bias_activation: x must have at least one dimension, found ", x.to_string());
  require_vector("bias_activation", "bias", bias, x.value().size(-1), x.value());
  require_computes(context, "bias_activation", x);
  const bool records = context.records({&x, &bias});

  ActivationForward forward;
  forward.kind = kind;
  forward.bias = value_or_undefined(bias);
  forward.output = !records && is_given_up(x) ? x.value() : context.allocate(x.shape(), x.value().dtype(), "bias_activation");
  forward.input = x.value();
  context.backend.activation().forward(context.stream, forward);

  Variable output = make_output(forward.output, records);
  if (records)
    context.tape->push(
        [output = output.without_value(), x_gradient = x.without_value(), saved = forward.input, kind, bias](ExecutionContext& at) mutable {
          Tensor d_output = output_gradient("bias_activation", output, saved.dtype());
          if (!d_output.defined()) return;
          ActivationBackward backward;
          backward.kind = kind;
          backward.bias = value_or_undefined(bias);
          backward.d_input = is_exclusive(d_output) ? d_output : at.allocate(saved.shape(), saved.dtype(), "gradient");
          backward.d_output = std::move(d_output);
          backward.input = std::move(saved);
          const GradientTarget d_bias = parameter_target(at, bias, Shape{backward.input.size(-1)}, backward.input.dtype());
          backward.d_bias = d_bias.tensor;
          backward.accumulate_bias = d_bias.accumulate;
          at.backend.activation().backward(at.stream, backward);
          Tensor d_input = backward.d_input.reshape(backward.input.shape());
          backward = {};
          if (x_gradient.requires_gradient()) contribute(at, x_gradient, std::move(d_input));
        });
  return output;
}

}  // namespace dmuon
