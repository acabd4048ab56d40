// What a person sees while a run goes on: on a terminal one live line with an estimate of the time left, and one line
// per logged step everywhere.
#pragma once

#include <chrono>
#include <string>

#include "train/metrics.h"

namespace dmuon {

class Progress {
 public:
  // `enabled` on rank 0 only; `interval`: steps between logged lines.
  Progress(int64_t first_step, int64_t steps, int64_t interval, bool enabled);
  void step(const StepMetrics& metrics);
  // Prints a line of its own without disturbing the live one.
  void say(const std::string& line);
  void finish();

 private:
  std::string describe(const StepMetrics& metrics) const;
  void clear_live();

  int64_t first_step_, steps_, interval_;
  bool enabled_, terminal_;
  bool live_ = false;
  double seconds_per_step_ = 0.0;  // smoothed; evaluation and checkpoints stay out of it
  int64_t seen_ = 0;
  std::chrono::steady_clock::time_point last_draw_{};
};

}  // namespace dmuon
