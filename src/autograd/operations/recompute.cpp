#include "autograd/operations/common.h"

namespace dmuon {

std::vector<Variable> recompute(ExecutionContext& context, const std::vector<Variable>& inputs, RecomputeBody body) {
  if (context.tape == nullptr) return body(context, inputs);
  ExecutionContext unrecorded = context;
  unrecorded.tape = nullptr;
  // Whether parameters inside the body require gradients is not known here, so its outputs always get a slot.
  std::vector<Variable> outputs, slots;
  for (const Variable& output : body(unrecorded, inputs)) {
    outputs.push_back(make_output(output.value(), true));
    slots.push_back(outputs.back().without_value());
  }
  // The forward's context is kept: dropout must find the same masks.
  context.tape->push([inputs = inputs, slots, body = std::move(body), forward = context](ExecutionContext& at) mutable {
    Tape tape;
    ExecutionContext recorded = forward;
    recorded.tape = &tape;
    {
      // The inputs are the outer variables, so their gradients arrive where they belong.
      const std::vector<Variable> again = body(recorded, inputs);
      require_shape(again.size() == slots.size(), "recompute: the body returned ", again.size(), " outputs, the first time ", slots.size());
      for (size_t i = 0; i < slots.size(); ++i)
        if (Tensor gradient = take_gradient(slots[i]); gradient.defined() && again[i].requires_gradient())
          contribute(at, again[i], std::move(gradient));
    }
    inputs.clear();  // what the backward needs of them, the inner tape holds
    tape.backward(recorded);
  });
  return outputs;
}

}  // namespace dmuon
