// Values that know where their gradients go.
//
// Accumulation: the first contribution to a gradient overwrites whatever its memory held, later ones add. Operations
// never see a difference beyond GradientTarget::accumulate, and nothing is zeroed in advance. A gradient that receives
// no contribution counts as zeros.
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
  // A handle on a parameter: value() is looked up at every use, so that the memory may come and go in between.
  explicit Variable(std::shared_ptr<ParameterState> parameter) : parameter_(std::move(parameter)) {
    if (parameter_->requires_gradient) gradient_ = parameter_->gradient;
  }

  bool defined() const { return parameter_ != nullptr || value_.defined(); }
  // Throws ShapeError naming the parameter when its unit is not published.
  const Tensor& value() const;
  const Shape& shape() const { return value().shape(); }
  bool requires_gradient() const { return gradient_ != nullptr; }
  const std::shared_ptr<GradientSlot>& gradient() const { return gradient_; }

  // Keeps the gradient only: for operations whose backward does not need the value.
  Variable without_value() const;

 private:
  Tensor value_;
  std::shared_ptr<GradientSlot> gradient_;
  std::shared_ptr<ParameterState> parameter_;
};

}  // namespace dmuon
