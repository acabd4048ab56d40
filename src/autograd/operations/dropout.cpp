#include "autograd/operations/common.h"

namespace dmuon {

Variable dropout(ExecutionContext& context, Variable x, double probability, uint64_t operation) {
  const DropoutMask mask = context.dropout_mask(probability, operation);
  if (mask.probability == 0.0) return x;
  require_computes(context, "dropout", x);
  const bool records = context.records({&x});
  const Tensor kept = is_given_up(x) ? x.value() : context.allocate(x.shape(), x.value().dtype(), "dropout");
  context.backend.activation().dropout(context.stream, {x.value(), kept, mask});

  Variable output = make_output(kept, records);
  if (records)
    context.tape->push([output = output.without_value(), x = x.without_value(), mask, dtype = kept.dtype()](ExecutionContext& at) {
      Tensor d_output = output_gradient("dropout", output, dtype);
      if (!d_output.defined()) return;
      Tensor d_input = is_exclusive(d_output) ? d_output : at.allocate(d_output.shape(), d_output.dtype(), "gradient");
      at.backend.activation().dropout(at.stream, {d_output, d_input, mask});
      d_output = {};
      contribute(at, x, std::move(d_input));
    });
  return output;
}

}  // namespace dmuon
