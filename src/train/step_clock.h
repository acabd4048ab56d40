// Where the time of a training step goes: every instant belongs to one phase. The host of a device only queues, so there a phase
// is what lies between two marks of its stream.
#pragma once

#include <array>
#include <chrono>
#include <string_view>
#include <vector>

#include "dmuon/backend/device_clock.h"
#include "dmuon/core/trace.h"

namespace dmuon {

enum class StepPhase : uint8_t { forward, backward, update, other };
std::string_view name_of(StepPhase phase);

class StepClock {
 public:
  // Phases, except `other`, also become spans of the track "phases" of `trace`. `stream`, where it belongs to a device, is what the
  // time is taken of; with a trace, whose spans are in the time of the host, every phase then ends with a wait for it.
  explicit StepClock(Trace* trace = nullptr, Stream* stream = nullptr);
  ~StepClock();
  StepClock(const StepClock&) = delete;
  StepClock& operator=(const StepClock&) = delete;

  // Ends the phase before; entering the current phase again does nothing.
  void enter(StepPhase phase);
  // Of the phases ended so far; waits for a device to get there.
  double seconds(StepPhase phase) const;

 private:
  struct Mark {
    StepPhase phase;  // that begins here
    Event event;
  };

  Trace* trace_;
  Stream* stream_;                 // null unless of a device
  DeviceClock* device_ = nullptr;  // of the stream; null with a trace
  std::vector<Mark> marks_;
  StepPhase phase_ = StepPhase::other;
  std::chrono::steady_clock::time_point start_;
  std::array<double, 4> seconds_{};
};

}  // namespace dmuon
