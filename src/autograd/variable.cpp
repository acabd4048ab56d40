#include "dmuon/autograd/variable.h"

#include "dmuon/core/text.h"

namespace dmuon {

const Tensor& Variable::value() const {
  if (!parameter_) {
    if (!value_.defined()) throw ShapeError("an operation was given an undefined variable");
    return value_;
  }
  if (!parameter_->value.defined())
    throw ShapeError(text("parameter \"", parameter_->name, "\" is used while its unit is not published; use it inside its unit's scope"));
  return parameter_->value;
}

std::shared_ptr<GradientSlot> Variable::gradient() const {
  if (!parameter_) return gradient_;
  return parameter_->requires_gradient ? parameter_->gradient : nullptr;
}

Variable Variable::without_value() const {
  if (parameter_) return *this;
  Variable result;
  result.gradient_ = gradient_;
  return result;
}

std::string Variable::to_string() const {
  if (!parameter_) return value_.defined() ? value_.to_string() : "undefined";
  return text('"', parameter_->name, "\" ", parameter_->value.defined() ? parameter_->value.to_string() : "(not published)");
}

}  // namespace dmuon
