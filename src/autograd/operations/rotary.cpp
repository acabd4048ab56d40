#include "autograd/operations/common.h"

namespace dmuon {

Variable rotary(ExecutionContext& context, Variable x, const Tensor& positions, const RotaryOptions& options, const Variable& weight) {
  const int64_t heads = options.heads;
  require_shape(x.value().rank() == 3 && heads >= 1 && x.shape()[2] % (2 * heads) == 0, "rotary: x must be [B, T, H*D] with H = ", heads,
                " and D even, found ", x.to_string());
  require_indices("rotary", "positions", positions);
  const int64_t batch = x.shape()[0], length = x.shape()[1], channels = x.shape()[2] / heads;
  require_shape(positions.shape() == Shape({batch, length}), "rotary: x ", x.to_string(), " needs positions int32[", batch, ", ", length,
                "], found ", positions.to_string());
  require_vector("rotary", "weight", weight, channels, x.value());
  require_computes(context, "rotary", x);
  const bool records = context.records({&x, &weight});
  const DType dtype = x.value().dtype();
  const Shape shape = x.shape(), rows{batch * length, heads, channels};

  RotaryForward forward;
  forward.positions = positions.flat();
  forward.theta = options.theta;
  forward.weight = value_or_undefined(weight);
  forward.epsilon = options.epsilon;
  // The backward of the rotation alone needs no values; that of the norm needs the input.
  const bool in_place = is_given_up(x) && !(records && weight.defined());
  const Tensor result = in_place ? x.value() : context.allocate(shape, dtype, "rotary");
  forward.input = x.value().reshape(rows);
  forward.output = result.reshape(rows);
  if (records && weight.defined())
    forward.inverse_deviation = context.allocate(Shape{batch * length, heads}, statistics_dtype(dtype), "rotary norm deviation");
  context.backend.attention().rotary_forward(context.stream, forward);

  Variable output = make_output(result, records);
  forward.output = {};
  if (!weight.defined()) forward.input = {};
  if (records)
    context.tape->push([output = output.without_value(), x_gradient = x.without_value(), weight, forward, dtype, shape,
                        rows](ExecutionContext& at) mutable {
      Tensor d_output = output_gradient("rotary", output, dtype);
      if (!d_output.defined()) return;
      Tensor d_input = is_exclusive(d_output) ? d_output : at.allocate(shape, dtype, "gradient");
      RotaryBackward backward;
      backward.forward = std::move(forward);
      backward.d_output = d_output.reshape(rows);
      backward.d_input = d_input.reshape(rows);
      const GradientTarget d_weight = parameter_target(at, weight, Shape{rows[2]}, dtype);
      backward.d_weight = d_weight.tensor;
      backward.accumulate_weight = d_weight.accumulate;
      at.backend.attention().rotary_backward(at.stream, backward);
      backward = {};
      d_output = {};
      if (x_gradient.requires_gradient()) contribute(at, x_gradient, d_input.reshape(shape));
    });
  return output;
}

}  // namespace dmuon
