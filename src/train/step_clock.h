// Where the time of a training step goes: every instant belongs to one phase.
#pragma once

#include <array>
#include <chrono>
#include <string_view>

#include "dmuon/core/trace.h"

namespace dmuon {

enum class StepPhase : uint8_t { forward, backward, update, other };
std::string_view name_of(StepPhase phase);

class StepClock {
 public:
  // Phases, except `other`, also become spans of the track "phases" of `trace`.
  explicit StepClock(Trace* trace = nullptr) : trace_(trace), start_(std::chrono::steady_clock::now()) {}
  ~StepClock() { enter(StepPhase::other); }
  StepClock(const StepClock&) = delete;
  StepClock& operator=(const StepClock&) = delete;

  // Ends the phase before; entering the current phase again does nothing.
  void enter(StepPhase phase);
  // Of the phases ended so far.
  double seconds(StepPhase phase) const { return seconds_[static_cast<size_t>(phase)]; }

 private:
  Trace* trace_;
  StepPhase phase_ = StepPhase::other;
  std::chrono::steady_clock::time_point start_;
  std::array<double, 4> seconds_{};
};

}  // namespace dmuon
