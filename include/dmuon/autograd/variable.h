// Values that know where their gradients go.
//
// Accumulation: the first contribution to a gradient overwrites whatever its memory held, later ones add. Operations
// never see a difference beyond GradientTarget::accumulate, and nothing is zeroed in advance. A gradient that receives
// no contribution counts as zeros.
//
// Ownership: a gradient may travel without a copy, so two slots can hold one tensor (residual_normalization hands its
// input gradient to both branches of the residual). The rule that keeps this safe is copy on write:
//   - a tensor assigned from outside (a parameter's view into a unit's gradient buffer) is always written in place;
//   - any other gradient is written in place only by the holder of the only handle on its storage (`is_exclusive`);
//     whoever wants to add to a shared one adds into memory of its own.
#pragma once

#include <memory>
#include <string>

#include "dmuon/core/tensor.h"

namespace dmuon {

struct ExecutionContext;

// Where an operation's backward writes a gradient.
struct GradientTarget {
  Tensor tensor;
  bool accumulate = false;
};

// The gradient of one value. For parameters the tensor is a view into a unit's gradient buffer, assigned from outside.
struct GradientSlot {
  Tensor tensor;
  bool defined = false;  // has received a contribution since it was cleared
  bool owned = false;    // `tensor` was allocated or adopted by the tape, hence may be replaced; false: assigned from outside
};

// State of a parameter that operations need; the full record is nn/parameter.h. `value` is undefined while the
// parameter's unit is not published.
struct ParameterState {
  std::string name;
  Tensor value;
  std::shared_ptr<GradientSlot> gradient = std::make_shared<GradientSlot>();
  bool requires_gradient = true;
};

class Variable {
 public:
  Variable() = default;  // undefined
  explicit Variable(Tensor value, std::shared_ptr<GradientSlot> gradient = nullptr)
      : value_(std::move(value)), gradient_(std::move(gradient)) {}
  // A handle on a parameter: value() is looked up at every use, so that the memory may come and go in between, and so is
  // whether it requires a gradient, so that it may be frozen at any time between steps.
  explicit Variable(std::shared_ptr<ParameterState> parameter) : parameter_(std::move(parameter)) {}

  bool defined() const { return parameter_ != nullptr || value_.defined(); }
  // Throws ShapeError naming the parameter when its unit is not published, or when the variable is undefined.
  const Tensor& value() const;
  const Shape& shape() const { return value().shape(); }
  bool requires_gradient() const { return parameter_ ? parameter_->requires_gradient : gradient_ != nullptr; }
  // Null unless requires_gradient().
  std::shared_ptr<GradientSlot> gradient() const;
  const std::shared_ptr<ParameterState>& parameter() const { return parameter_; }  // null for other values

  // Keeps the gradient (and a parameter's handle) only: for operations whose backward does not need the value.
  Variable without_value() const;
  // For messages: the parameter's name with the value's dtype and shape, or only those.
  std::string to_string() const;

 private:
  Tensor value_;
  std::shared_ptr<GradientSlot> gradient_;
  std::shared_ptr<ParameterState> parameter_;
};

// True when `tensor` is the only handle on its storage, so that whoever holds it may overwrite it. A false negative
// (a kernel still queued, a local view) only costs a copy.
inline bool is_exclusive(const Tensor& tensor) { return tensor.defined() && tensor.storage().use_count() == 1; }

}  // namespace dmuon
