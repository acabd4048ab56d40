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

StepClock::StepClock(Trace* trace, Stream* stream) : trace_(trace), stream_(stream), start_(std::chrono::steady_clock::now()) {
  auto* device = dynamic_cast<DeviceClock*>(stream);
  if (device == nullptr) stream_ = nullptr;
  if (trace == nullptr) device_ = device;
}

StepClock::~StepClock() {
  if (stream_ == nullptr) enter(StepPhase::other);
}

double StepClock::seconds(StepPhase phase) const {
  if (device_ == nullptr) return seconds_[static_cast<size_t>(phase)];
  if (!marks_.empty()) marks_.back().event.wait();
  double seconds = 0.0;
  for (size_t i = 0; i + 1 < marks_.size(); ++i)
    if (marks_[i].phase == phase) seconds += device_->seconds_between(marks_[i].event, marks_[i + 1].event);
  return seconds;
}

void StepClock::enter(StepPhase phase) {
  if (phase == phase_) return;
  if (device_ != nullptr) {
    phase_ = phase;
    marks_.push_back({phase, device_->record_time()});
    return;
  }
  if (stream_ != nullptr) stream_->synchronize();
  const auto now = std::chrono::steady_clock::now();
  seconds_[static_cast<size_t>(phase_)] += std::chrono::duration<double>(now - start_).count();
  if (trace_ != nullptr && phase_ != StepPhase::other) trace_->record("phases", "phase", name_of(phase_), start_, now);
  phase_ = phase;
  start_ = now;
}

}  // namespace dmuon
