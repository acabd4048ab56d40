#include "autograd/operations/common.h"

namespace dmuon {

Variable add(ExecutionContext& context, const Variable& a, const Variable& b) {
  require_shape(a.shape() == b.shape() && a.value().dtype() == b.value().dtype(), "add: ", a.to_string(), " and ", b.to_string(),
                " must be equal in shape and dtype");
  require_computes(context, "add", a);
  const Tensor sum = context.allocate(a.shape(), a.value().dtype(), "add");
  context.backend.activation().scaled_add(context.stream, {a.value(), sum, 1.0, false});
  context.backend.activation().scaled_add(context.stream, {b.value(), sum, 1.0, true});

  const bool records = context.records({&a, &b});
  Variable output = make_output(sum, records);
  if (records)
    context.tape->push(
        [output = output.without_value(), a = a.without_value(), b = b.without_value(), dtype = sum.dtype()](ExecutionContext& at) {
          Tensor d_output = output_gradient("add", output, dtype);
          if (!d_output.defined()) return;
          if (a.requires_gradient()) contribute(at, a, d_output);
          if (b.requires_gradient()) contribute(at, b, std::move(d_output));
        });
  return output;
}

}  // namespace dmuon
