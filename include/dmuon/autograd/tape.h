// The record of one forward pass. Operations push their backward in forward order; backward() runs them in reverse and
// drops each as soon as it has run, so saved tensors go as early as possible. No graph survives a step.
//
// How an operation is written: check shapes, run the kernel, and, if context.records(inputs), give the output a gradient
// slot and push a closure that keeps the values its backward needs and nothing else (inputs whose value it does not need
// go in without_value(), the output as its slot).
#pragma once

#include <functional>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "dmuon/autograd/variable.h"
#include "dmuon/backend/backend.h"

namespace dmuon {

class Tape;

// What operations run in. One per micro-batch; cheap to copy.
struct ExecutionContext {
  Backend& backend;
  Stream& stream;
  Tape* tape = nullptr;        // null: no-grad mode, nothing is recorded
  bool training = false;       // dropout acts only in training
  uint64_t dropout_seed = 0;   // run seed and step mixed
  int64_t first_sequence = 0;  // global index of the first sequence of this batch
  int64_t sequences = 1;

  // True when the operation must record: a tape and at least one defined input that requires a gradient.
  bool records(std::initializer_list<const Variable*> inputs) const;
  Tensor allocate(const Shape& shape, DType dtype, std::string_view label) const;  // category activations
  // The mask of operation number `operation` of the model; of probability 0 outside training. ConfigError unless
  // 0 <= probability < 1.
  DropoutMask dropout_mask(double probability, uint64_t operation) const;
};

class Tape {
 public:
  using Backward = std::function<void(ExecutionContext&)>;

  void push(Backward backward) { entries_.push_back(std::move(backward)); }
  bool empty() const { return entries_.empty(); }
  // Runs and drops all entries in reverse. `context.tape` is ignored: backwards are not recorded. After an exception
  // the entries that have not run are still there; clear() drops them.
  void backward(ExecutionContext context);
  void clear() { entries_.clear(); }

 private:
  std::vector<Backward> entries_;
};

// All of the following keep the ownership rule of variable.h and require variable.requires_gradient().

// The target for a contribution to this variable's gradient: the slot's tensor where it may be written, else new memory
// (category activations; gradients for a parameter), with the value so far copied when that was shared. Marks the slot
// defined. Throws ShapeError when a tensor assigned from outside has another element count or dtype.
GradientTarget gradient_target(ExecutionContext& context, const Variable& variable, const Shape& shape, DType dtype);
// A finished gradient: adopted as it is when it is the first contribution (no copy), otherwise added. The caller may
// keep a handle and read it, but must not write it any more. One of a parameter is widened to float32 first where it is narrower.
void contribute(ExecutionContext& context, const Variable& variable, Tensor gradient);
// Takes the accumulated gradient out of an operation's output slot; undefined when none arrived.
Tensor take_gradient(const Variable& output);

}  // namespace dmuon
