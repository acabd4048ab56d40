#include "autograd/operations/common.h"

namespace dmuon {

Variable swiglu(ExecutionContext& context, Variable gate, Variable up) {
  const Tensor& value = gate.value();
  require_shape(value.rank() >= 1 && up.shape() == gate.shape() && up.value().dtype() == value.dtype(),
                "swiglu: gate and up must be alike and have at least one dimension, found ", gate.to_string(), " and ", up.to_string());
  require_computes(context, "swiglu", gate);
  const bool records = context.records({&gate, &up});

  SwiGluForward forward;
  if (!records && is_given_up(gate))
    forward.output = gate.value();
  else if (!records && is_given_up(up))
    forward.output = up.value();
  else
    forward.output = context.allocate(gate.shape(), value.dtype(), "swiglu");
  forward.gate = gate.value();
  forward.up = up.value();
  context.backend.activation().swiglu_forward(context.stream, forward);

  Variable output = make_output(forward.output, records);
  if (records)
    context.tape->push([output = output.without_value(), gate_gradient = gate.without_value(), up_gradient = up.without_value(),
                        saved_gate = forward.gate, saved_up = forward.up](ExecutionContext& at) mutable {
      Tensor d_output = output_gradient("swiglu", output, saved_gate.dtype());
      if (!d_output.defined()) return;
      SwiGluBackward backward;
      // The two gradients may take over d_output's memory and, where nobody else reads it, gate's or up's.
      backward.d_gate = is_exclusive(d_output) ? d_output : at.allocate(saved_gate.shape(), saved_gate.dtype(), "gradient");
      backward.d_up = is_exclusive(saved_up) ? saved_up : at.allocate(saved_gate.shape(), saved_gate.dtype(), "gradient");
      backward.d_output = std::move(d_output);
      backward.gate = std::move(saved_gate);
      backward.up = std::move(saved_up);
      at.backend.activation().swiglu_backward(at.stream, backward);
      Tensor d_gate = backward.d_gate.reshape(backward.gate.shape()), d_up = backward.d_up;
      backward = {};
      if (gate_gradient.requires_gradient()) contribute(at, gate_gradient, std::move(d_gate));
      if (up_gradient.requires_gradient()) contribute(at, up_gradient, std::move(d_up));
    });
  return output;
}

}  // namespace dmuon
