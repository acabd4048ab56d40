// Learning-rate schedules: pure functions of the update's number.
#pragma once

#include <cstdint>
#include <string_view>

namespace dmuon {

enum class ScheduleType : uint8_t { constant, linear, cosine, warmup_stable_decay };
std::string_view name_of(ScheduleType type);  // "constant", "linear", "cosine", "warmup_stable_decay"
ScheduleType schedule_type_from_name(std::string_view name);

enum class DecayShape : uint8_t { linear, one_minus_sqrt };
std::string_view name_of(DecayShape shape);  // "linear", "one_minus_sqrt"
DecayShape decay_shape_from_name(std::string_view name);

// With w = max(1, warmup_steps): update s of the first w runs at peak * s / w, so the first rate is never zero and update
// w runs at the peak. Then, with p = (s - w) / (total_steps - w):
//   constant              the peak
//   linear                peak * (1 - p (1 - final_fraction))
//   cosine                peak * (final_fraction + (1 - final_fraction) (1 + cos(pi p)) / 2)
//   warmup_stable_decay   the peak up to update total_steps - decay_steps, then over decay_steps down to
//                         peak * final_fraction, with q the part of the decay done:
//                         linear: 1 - q (1 - final_fraction);  one_minus_sqrt: 1 - sqrt(q) (1 - final_fraction)
// so update total_steps runs at peak * final_fraction (unless w >= total_steps). Later updates keep that rate.
struct ScheduleOptions {
  ScheduleType type = ScheduleType::constant;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;  // unused by constant
  int64_t decay_steps = 0;  // warmup_stable_decay only; cut to what warm-up leaves
  DecayShape decay_shape = DecayShape::linear;
  double final_fraction = 0.0;
};

// The rate of update `step`; the first is 1, smaller numbers count as 1.
double scheduled_learning_rate(const ScheduleOptions& options, double peak, int64_t step);

}  // namespace dmuon
