#include "dmuon/autograd/feed_forward.h"

#include "autograd/operations/linear_gradients.h"
#include "dmuon/backend/product_epilogues.h"

namespace dmuon {
namespace {

// What backward needs: the gradients' places, x, what went into the activation (bias included) and what came out.
struct Saved {
  Variable x, output;  // gradients only
  FeedForwardLayers layers;
  Tensor input, pre_activation, hidden;
  Shape shape;  // of x
};

bool any_requires_gradient(const Saved& s) {
  return s.x.requires_gradient() || s.layers.up_weight.requires_gradient() || s.layers.up_bias.requires_gradient();
}

// d_pre_activation = (d_output down_weight) * gelu_tanh'(pre_activation)
Tensor gradient_of_activation(ExecutionContext& context, const Tensor& d_output, Saved& saved) {
  const Tensor pre_activation = std::move(saved.pre_activation);
  GeluGradientProduct gradient;
  gradient.product.a = d_output;
  gradient.product.b = saved.layers.down_weight.value();
  gradient.product.c = context.allocate(pre_activation.shape(), pre_activation.dtype(), "gradient");
  gradient.pre_activation = pre_activation;
  if (!product_epilogues(context.backend)->multiply_gelu_gradient(context.stream, gradient)) {
    context.backend.matrix().multiply(context.stream, gradient.product);
    ActivationBackward backward;
    backward.kind = ActivationKind::gelu_tanh;
    backward.input = pre_activation;
    backward.d_output = backward.d_input = gradient.product.c;
    context.backend.activation().backward(context.stream, backward);
  }
  return gradient.product.c;
}

void backward(ExecutionContext& context, Saved& saved) {
  const Tensor taken = output_gradient("feed_forward", saved.output, saved.pre_activation.dtype());
  if (!taken.defined()) return;
  const Tensor d_output = as_matrix(taken);
  add_parameter_gradients(context, d_output, std::move(saved.hidden), saved.layers.down_weight, saved.layers.down_bias);
  if (!any_requires_gradient(saved)) return;
  const Tensor d_pre_activation = gradient_of_activation(context, d_output, saved);
  add_parameter_gradients(context, d_pre_activation, std::move(saved.input), saved.layers.up_weight, saved.layers.up_bias);
  add_input_gradient(context, d_pre_activation, saved.layers.up_weight, saved.x, saved.shape);
}

}  // namespace

Variable feed_forward(ExecutionContext& context, Variable x, const FeedForwardLayers& layers, ActivationKind kind) {
  const auto separate = [&] {
    Variable hidden = linear(context, x, layers.up_weight);
    x = {};
    hidden = bias_activation(context, std::move(hidden), layers.up_bias, kind);
    return linear(context, hidden, layers.down_weight, layers.down_bias);
  };
  ProductEpilogues* const epilogues = kind == ActivationKind::gelu_tanh ? product_epilogues(context.backend) : nullptr;
  const Tensor& input = x.value();
  const Tensor& up = layers.up_weight.value();
  const bool fits = input.rank() >= 1 && up.rank() == 2 && up.size(1) == input.size(-1) && up.dtype() == input.dtype();
  if (!epilogues || !fits || !context.backend.computes_in(input.dtype())) return separate();  // which says what does not fit
  require_vector("feed_forward", "bias of the first layer", layers.up_bias, up.size(0), input);

  GeluProduct first;
  first.product.a = as_matrix(input);
  first.product.b = up;
  first.product.transpose_b = true;
  first.product.bias = value_or_undefined(layers.up_bias);
  const Shape inner{input.rows(), up.size(0)};
  first.product.c = context.allocate(inner, input.dtype(), "linear");
  first.pre_activation = context.allocate(inner, input.dtype(), "bias_activation");
  if (!epilogues->multiply_gelu(context.stream, first)) {
    first = {};
    return separate();
  }

  const bool records = context.records({&x, &layers.up_weight, &layers.up_bias, &layers.down_weight, &layers.down_bias});
  Saved saved;
  if (records) {
    saved.x = x.without_value();
    saved.layers = {layers.up_weight, layers.up_bias.without_value(), layers.down_weight, layers.down_bias.without_value()};
    saved.shape = input.shape();
    if (layers.up_weight.requires_gradient()) saved.input = first.product.a;
    saved.pre_activation = first.pre_activation;
    if (layers.down_weight.requires_gradient()) saved.hidden = first.product.c;
  }
  const Shape shape = input.shape();
  Tensor hidden = std::move(first.product.c);
  first = {};
  x = {};

  const Tensor& down = layers.down_weight.value();
  require_shape(down.rank() == 2 && down.size(1) == hidden.size(1) && down.dtype() == hidden.dtype(), "feed_forward: a hidden ",
                hidden.to_string(), " needs a weight ", name_of(hidden.dtype()), "[out, ", hidden.size(1), "], found ",
                layers.down_weight.to_string());
  require_vector("feed_forward", "bias of the second layer", layers.down_bias, down.size(0), hidden);
  Multiply second;
  second.a = hidden;
  second.b = down;
  second.transpose_b = true;
  second.bias = value_or_undefined(layers.down_bias);
  const Tensor value = context.allocate(with_last(shape, down.size(0)), hidden.dtype(), "linear");
  second.c = as_matrix(value);
  context.backend.matrix().multiply(context.stream, second);
  Variable output = make_output(value, records);
  if (records) {
    saved.output = output.without_value();
    context.tape->push([saved = std::move(saved)](ExecutionContext& at) mutable { backward(at, saved); });
  }
  return output;
}

}  // namespace dmuon
