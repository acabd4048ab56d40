// How long a rank has waited for others, not counting time in which it did not run itself.
#pragma once

#include <algorithm>
#include <chrono>

namespace dmuon {

// A process that was stopped (by a scheduler, a debugger, a sleeping laptop) finds its clock far ahead when it goes on, and
// would blame peers who have waited for it. So a gap between two looks counts as at most `longest_gap` seconds: whoever
// waits looks far more often.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // `seconds` 0: no limit.
  explicit Deadline(double seconds, double longest_gap = 0.25, Clock::time_point now = Clock::now())
      : seconds_(seconds), longest_gap_(longest_gap), last_(now) {}

  double seconds() const { return seconds_; }
  double waited() const { return waited_; }

  bool passed(Clock::time_point now = Clock::now()) {
    waited_ += std::min(std::chrono::duration<double>(now - last_).count(), longest_gap_);
    last_ = now;
    return seconds_ > 0 && waited_ > seconds_;
  }

 private:
  double seconds_;
  double longest_gap_;
  double waited_ = 0;
  Clock::time_point last_;
};

}  // namespace dmuon
