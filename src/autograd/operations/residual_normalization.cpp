#include "autograd/operations/common.h"

namespace dmuon {

namespace {

struct Saved {
  Variable x, branch, branch_bias, weight, bias, residual, output;  // gradients only, but for the weight
  Tensor normalized_input, mean, inverse_deviation;
  DropoutMask dropout;
  NormalizationKind kind = NormalizationKind::layer_norm;
};

// Hands d(x + dropout(branch + bias)) to the two summands.
void pass_on(ExecutionContext& context, const Saved& saved, Tensor d_input, Tensor d_branch) {
  if (saved.branch.requires_gradient()) contribute(context, saved.branch, d_branch.defined() ? std::move(d_branch) : d_input);
  if (saved.x.requires_gradient()) contribute(context, saved.x, std::move(d_input));
}

// Only the residual was used: no gradient passes through the normalisation.
void backward_of_residual(ExecutionContext& context, const Saved& saved, Tensor d_residual) {
  Tensor d_branch;
  if (saved.dropout.probability > 0.0 && (saved.branch.requires_gradient() || saved.branch_bias.requires_gradient())) {
    d_branch = context.allocate(d_residual.shape(), d_residual.dtype(), "gradient");
    context.backend.activation().dropout(context.stream, {d_residual, d_branch, saved.dropout});
  }
  const GradientTarget d_bias = parameter_target(context, saved.branch_bias, Shape{d_residual.size(-1)}, d_residual.dtype());
  if (d_bias.tensor.defined())
    context.backend.matrix().column_sum(context.stream,
                                        {as_matrix(d_branch.defined() ? d_branch : d_residual), d_bias.tensor, d_bias.accumulate});
  pass_on(context, saved, std::move(d_residual), std::move(d_branch));
}

void backward_of_both(ExecutionContext& context, Saved& saved) {
  Tensor d_residual = output_gradient("residual_normalization", saved.residual, saved.normalized_input.dtype());
  Tensor d_output = output_gradient("residual_normalization", saved.output, saved.normalized_input.dtype());
  if (!d_output.defined()) {
    if (d_residual.defined()) backward_of_residual(context, saved, std::move(d_residual));
    return;
  }
  const Shape shape = saved.normalized_input.shape();
  const DType dtype = saved.normalized_input.dtype();
  const Shape channels{shape[-1]};
  NormalizationBackward backward;
  backward.kind = saved.kind;
  // In place where nobody else reads the incoming gradients.
  if (is_exclusive(d_residual))
    backward.d_input = d_residual;
  else if (is_exclusive(d_output))
    backward.d_input = d_output;
  else
    backward.d_input = context.allocate(shape, dtype, "gradient");
  backward.d_output = std::move(d_output);
  backward.d_residual = std::move(d_residual);
  backward.normalized_input = std::move(saved.normalized_input);
  backward.mean = std::move(saved.mean);
  backward.inverse_deviation = std::move(saved.inverse_deviation);
  backward.weight = saved.weight.value();
  backward.dropout = saved.dropout;
  if (saved.dropout.probability > 0.0 && saved.branch.requires_gradient()) backward.d_branch = context.allocate(shape, dtype, "gradient");
  const GradientTarget d_branch_bias = parameter_target(context, saved.branch_bias, channels, dtype);
  backward.d_branch_bias = d_branch_bias.tensor;
  backward.accumulate_branch_bias = d_branch_bias.accumulate;
  const GradientTarget d_weight = parameter_target(context, saved.weight, channels, dtype);
  backward.d_weight = d_weight.tensor;
  backward.accumulate_weight = d_weight.accumulate;
  const GradientTarget d_bias = parameter_target(context, saved.bias, channels, dtype);
  backward.d_bias = d_bias.tensor;
  backward.accumulate_bias = d_bias.accumulate;
  context.backend.normalization().backward(context.stream, backward);
  Tensor d_input = backward.d_input.shape() == shape ? backward.d_input : backward.d_input.reshape(shape);
  Tensor d_branch = backward.d_branch;
  backward = {};
  pass_on(context, saved, std::move(d_input), std::move(d_branch));
}

}  // namespace

ResidualNormalization residual_normalization(ExecutionContext& context, const Variable& x, Variable branch, const Variable& branch_bias,
                                             double dropout, uint64_t operation, const Variable& weight, const Variable& bias,
                                             const NormalizationOptions& options) {
  const Tensor& input = x.value();
  require_shape(input.rank() >= 1 && branch.shape() == input.shape() && branch.value().dtype() == input.dtype(),
                "residual_normalization: x ", x.to_string(), " and branch ", branch.to_string(), " must be equal in shape and dtype");
  const int64_t columns = input.size(-1);
  require_vector("residual_normalization", "branch bias", branch_bias, columns, input);
  require_vector("residual_normalization", "weight", weight, columns, input);
  require_vector("residual_normalization", "bias", bias, columns, input);
  require_computes(context, "residual_normalization", x);

  NormalizationForward forward;
  forward.kind = options.kind;
  forward.epsilon = options.epsilon;
  forward.dropout = context.dropout_mask(dropout, operation);
  // The sum takes the branch's memory when that was given up: no backward needs the branch's value.
  forward.residual = is_given_up(branch) ? branch.value() : context.allocate(input.shape(), input.dtype(), "residual");
  forward.input = input;
  forward.branch = branch.value();
  forward.branch_bias = value_or_undefined(branch_bias);
  forward.weight = weight.value();
  forward.bias = value_or_undefined(bias);
  forward.output = context.allocate(input.shape(), input.dtype(), "normalization");
  const Shape rows{input.rows()};
  forward.mean = context.allocate(rows, statistics_dtype(input.dtype()), "normalization mean");
  forward.inverse_deviation = context.allocate(rows, statistics_dtype(input.dtype()), "normalization deviation");
  context.backend.normalization().forward(context.stream, forward);

  const bool records = context.records({&x, &branch, &branch_bias, &weight, &bias});
  ResidualNormalization result{make_output(forward.residual, records), make_output(forward.output, records)};
  if (records) {
    Saved saved;
    saved.x = x.without_value();
    saved.branch = branch.without_value();
    saved.branch_bias = branch_bias.without_value();
    saved.weight = weight;
    saved.bias = bias.without_value();
    saved.residual = result.residual.without_value();
    saved.output = result.output.without_value();
    saved.normalized_input = forward.residual;
    saved.mean = forward.mean;
    saved.inverse_deviation = forward.inverse_deviation;
    saved.dropout = forward.dropout;
    saved.kind = options.kind;
    context.tape->push([saved = std::move(saved)](ExecutionContext& at) mutable { backward_of_both(at, saved); });
  }
  return result;
}

}  // namespace dmuon
