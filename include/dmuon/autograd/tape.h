// The record of one forward pass. Operations push their backward in forward order; backward() runs them in reverse and
// drops each as soon as it has run, so saved tensors go as early as possible. No graph survives a step.
#pragma once

#include <functional>
#include <vector>

#include "dmuon/autograd/variable.h"
#include "dmuon/backend/backend.h"

namespace dmuon {

class Tape;

// What operations run in. One per micro-batch; cheap to copy.
struct ExecutionContext {
  Backend& backend;
  Stream& stream;
  Tape* tape = nullptr;         // null: no-grad mode, nothing is recorded
  bool training = false;        // dropout acts only in training
  uint64_t dropout_seed = 0;    // run seed and step mixed
  int64_t first_sequence = 0;   // global index of the first sequence of this batch
  int64_t sequences = 1;

  // True when the operation must record: a tape and at least one input that requires a gradient.
  bool records(std::initializer_list<const Variable*> inputs) const;
  Tensor allocate(const Shape& shape, DType dtype, std::string_view label) const;  // category activations
};

class Tape {
 public:
  using Backward = std::function<void(ExecutionContext&)>;

  void push(Backward backward) { entries_.push_back(std::move(backward)); }
  bool empty() const { return entries_.empty(); }
  // Runs and drops all entries in reverse. `context.tape` is ignored: backwards are not recorded.
  void backward(ExecutionContext context);
  void clear() { entries_.clear(); }

 private:
  std::vector<Backward> entries_;
};

// The target for a contribution to this variable's gradient: allocated on first use (category activations) unless the
// slot already has a tensor. Marks the slot defined.
GradientTarget gradient_target(ExecutionContext& context, const Variable& variable, const Shape& shape, DType dtype);
// A finished gradient that nobody else will write: adopted as it is when it is the first contribution (no copy),
// otherwise added.
void contribute(ExecutionContext& context, const Variable& variable, const Tensor& gradient);
// Takes the accumulated gradient out of an operation's output slot; undefined when none arrived.
Tensor take_gradient(const Variable& output);

}  // namespace dmuon
