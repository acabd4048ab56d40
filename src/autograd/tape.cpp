#include "dmuon/autograd/tape.h"

#include "dmuon/core/random.h"
#include "dmuon/core/text.h"

namespace dmuon {

bool ExecutionContext::records(std::initializer_list<const Variable*> inputs) const {
  if (tape == nullptr) return false;
  for (const Variable* input : inputs)
    if (input->requires_gradient()) return true;
  return false;
}

Tensor ExecutionContext::allocate(const Shape& shape, DType dtype, std::string_view label) const {
  return backend.allocate(shape, dtype, MemoryCategory::activations, label);
}

DropoutMask ExecutionContext::dropout_mask(double probability, uint64_t operation) const {
  if (!(probability >= 0.0 && probability < 1.0))
    throw ConfigError(text("a dropout probability must be at least 0 and below 1, found ", probability));
  DropoutMask mask;
  if (!training || probability == 0.0) return mask;
  mask.probability = probability;
  mask.seed = Random(dropout_seed, RandomStream::dropout, operation).key();
  mask.first_sequence = first_sequence;
  mask.sequences = sequences;
  return mask;
}

void Tape::backward(ExecutionContext context) {
  context.tape = nullptr;
  while (!entries_.empty()) {
    Backward entry = std::move(entries_.back());
    entries_.pop_back();
    entry(context);
  }
}

namespace {

bool may_write(const GradientSlot& slot) { return !slot.owned || is_exclusive(slot.tensor); }

Tensor allocate_gradient(ExecutionContext& context, const Variable& variable, const Shape& shape, DType dtype) {
  if (!variable.parameter()) return context.allocate(shape, dtype, "gradient");
  return context.backend.allocate(shape, dtype, MemoryCategory::gradients, variable.parameter()->name);
}

void check_fits(const Variable& variable, const Tensor& slot, const Shape& shape, DType dtype) {
  if (slot.elements() != shape.elements() || slot.dtype() != dtype)
    throw ShapeError(
        text("the gradient of ", variable.to_string(), " is kept in ", slot.to_string(), " but is ", name_of(dtype), shape.to_string()));
}

}  // namespace

GradientTarget gradient_target(ExecutionContext& context, const Variable& variable, const Shape& shape, DType dtype) {
  GradientSlot& slot = *variable.gradient();
  const bool accumulate = slot.defined;
  if (!slot.tensor.defined()) {
    slot.tensor = allocate_gradient(context, variable, shape, dtype);
    slot.owned = true;
  } else {
    check_fits(variable, slot.tensor, shape, dtype);
    if (!may_write(slot)) {
      Tensor own = allocate_gradient(context, variable, shape, dtype);
      if (accumulate) context.backend.copy(context.stream, slot.tensor, own);
      slot.tensor = std::move(own);
    }
  }
  slot.defined = true;
  return {slot.tensor.shape() == shape ? slot.tensor : slot.tensor.reshape(shape), accumulate};
}

void contribute(ExecutionContext& context, const Variable& variable, Tensor gradient) {
  GradientSlot& slot = *variable.gradient();
  if (variable.parameter() && (gradient.dtype() == DType::bfloat16 || gradient.dtype() == DType::float16)) {
    Tensor wide = allocate_gradient(context, variable, gradient.shape(), DType::float32);
    context.backend.copy(context.stream, gradient, wide);
    gradient = std::move(wide);
  }
  if (!slot.defined && (slot.owned || !slot.tensor.defined())) {
    slot.tensor = std::move(gradient);
    slot.owned = slot.defined = true;
    return;
  }
  // Of two gradients the one that nobody else reads takes the sum.
  if (slot.defined && !may_write(slot) && is_exclusive(gradient)) std::swap(slot.tensor, gradient);
  const GradientTarget target = gradient_target(context, variable, gradient.shape(), gradient.dtype());
  context.backend.activation().scaled_add(context.stream, {gradient, target.tensor, 1.0, target.accumulate});
}

Tensor take_gradient(const Variable& output) {
  GradientSlot& slot = *output.gradient();
  Tensor gradient = slot.defined ? std::move(slot.tensor) : Tensor();
  slot = GradientSlot{};
  return gradient;
}

}  // namespace dmuon
