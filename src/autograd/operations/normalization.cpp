#include "autograd/operations/common.h"

namespace dmuon {

Variable normalization(ExecutionContext& context, const Variable& x, const Variable& weight, const Variable& bias,
                       const NormalizationOptions& options) {
  const Tensor& input = x.value();
  require_shape(input.rank() >= 1, "normalization: x must have at least one dimension, found ", x.to_string());
  require_vector("normalization", "weight", weight, input.size(-1), input);
  require_vector("normalization", "bias", bias, input.size(-1), input);
  require_computes(context, "normalization", x);

  NormalizationForward forward;
  forward.kind = options.kind;
  forward.epsilon = options.epsilon;
  forward.input = input;
  forward.weight = weight.value();
  forward.bias = value_or_undefined(bias);
  forward.output = context.allocate(input.shape(), input.dtype(), "normalization");
  const Shape rows{input.rows()};
  forward.mean = context.allocate(rows, statistics_dtype(input.dtype()), "normalization mean");
  forward.inverse_deviation = context.allocate(rows, statistics_dtype(input.dtype()), "normalization deviation");
  context.backend.normalization().forward(context.stream, forward);

  const bool records = context.records({&x, &weight, &bias});
  Variable output = make_output(forward.output, records);
  if (records)
    context.tape->push([output = output.without_value(), x, weight, bias = bias.without_value(), kind = options.kind, mean = forward.mean,
                        inverse_deviation = forward.inverse_deviation](ExecutionContext& at) {
      const Tensor& normalized = x.value();
      const Shape channels{normalized.size(-1)};
      NormalizationBackward backward;
      backward.kind = kind;
      backward.d_output = output_gradient("normalization", output, normalized.dtype());
      if (!backward.d_output.defined()) return;
      backward.normalized_input = normalized;
      backward.mean = mean;
      backward.inverse_deviation = inverse_deviation;
      backward.weight = weight.value();
      const GradientTarget d_weight = parameter_target(at, weight, channels, normalized.dtype());
      const GradientTarget d_bias = parameter_target(at, bias, channels, normalized.dtype());
      backward.d_weight = d_weight.tensor;
      backward.accumulate_weight = d_weight.accumulate;
      backward.d_bias = d_bias.tensor;
      backward.accumulate_bias = d_bias.accumulate;
      const GradientTarget d_x = target_of(at, x, normalized.shape(), normalized.dtype());
      // The gradient that reached x by other paths is added in the same pass.
      if (d_x.accumulate) backward.d_residual = d_x.tensor;
      backward.d_input = d_x.tensor.defined() ? d_x.tensor : at.allocate(normalized.shape(), normalized.dtype(), "gradient");
      at.backend.normalization().backward(at.stream, backward);
    });
  return output;
}

}  // namespace dmuon
