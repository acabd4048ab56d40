#include "dmuon/nn/model.h"

namespace dmuon {

UnitScope::UnitScope(ExecutionContext& context, UnitListener* listener, int unit) : context_(context), listener_(listener), unit_(unit) {
  if (listener_ == nullptr) return;
  listener_->enter_forward(unit_);
  // The tape runs in reverse: what is pushed first is the end of the unit's backward.
  if (context_.tape != nullptr) context_.tape->push([listener, unit](ExecutionContext&) { listener->leave_backward(unit); });
}

void UnitScope::leave() {
  if (listener_ == nullptr) return;
  listener_->leave_forward(unit_);
  if (context_.tape != nullptr)
    context_.tape->push([listener = listener_, unit = unit_](ExecutionContext&) { listener->enter_backward(unit); });
}

}  // namespace dmuon
