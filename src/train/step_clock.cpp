#include "train/step_clock.h"

namespace dmuon {

std::string_view name_of(StepPhase phase) {
  switch (phase) {
    case StepPhase::forward:
      return "forward";
    case StepPhase::backward:
      return "backward";
    case StepPhase::update:
      return "update";
    case StepPhase::other:
      break;
  }
  return "other";
}

void StepClock::enter(StepPhase phase) {
  if (phase == phase_) return;
  const auto now = std::chrono::steady_clock::now();
  seconds_[static_cast<size_t>(phase_)] += std::chrono::duration<double>(now - start_).count();
  if (trace_ != nullptr && phase_ != StepPhase::other) trace_->record("phases", "phase", name_of(phase_), start_, now);
  phase_ = phase;
  start_ = now;
}

}  // namespace dmuon
