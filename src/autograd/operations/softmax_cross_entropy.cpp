#include "autograd/operations/common.h"

namespace dmuon {

Variable softmax_cross_entropy(ExecutionContext& context, Variable logits, const Tensor& targets, int64_t classes, double gradient_scale) {
  const Tensor& values = logits.value();
  require_shape(values.rank() >= 1 && classes >= 1 && classes <= values.size(-1), "softmax_cross_entropy: logits ", values.to_string(),
                " need between 1 and ", values.rank() ? values.size(-1) : 1, " classes, found ", classes);
  require_indices("softmax_cross_entropy", "targets", targets);
  require_shape(targets.elements() == values.rows(), "softmax_cross_entropy: logits ", values.to_string(), " need ", values.rows(),
                " targets, found ", targets.to_string());
  require_computes(context, "softmax_cross_entropy", logits);

  SoftmaxCrossEntropy forward;
  forward.logits = as_matrix(values);
  forward.targets = targets.flat();
  forward.losses = context.allocate(Shape{values.rows()}, statistics_dtype(values.dtype()), "losses");
  forward.classes = classes;
  forward.write_gradient = context.records({&logits});
  forward.gradient_scale = gradient_scale;
  context.backend.embedding_loss().softmax_cross_entropy(context.stream, forward);

  if (forward.write_gradient)
    context.tape->push([gradient = values, logits = logits.without_value()](ExecutionContext& at) mutable {
      contribute(at, logits, std::move(gradient));
    });
  return Variable(forward.losses);
}

}  // namespace dmuon
