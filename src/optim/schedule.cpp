#include "dmuon/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "optim/rule_support.h"

namespace dmuon {
namespace {

double part(int64_t done, int64_t whole) { return static_cast<double>(done) / static_cast<double>(whole); }

// Fraction of the peak after warm-up; warm-up < step <= total.
double after_warmup(const ScheduleOptions& options, int64_t warmup, int64_t step) {
  const double drop = 1.0 - options.final_fraction;
  switch (options.type) {
    case ScheduleType::constant:
      return 1.0;
    case ScheduleType::linear:
      return 1.0 - part(step - warmup, options.total_steps - warmup) * drop;
    case ScheduleType::cosine:
      if (step == options.total_steps) return options.final_fraction;  // exactly, not cos(pi) rounded
      return options.final_fraction + drop * 0.5 * (1.0 + std::cos(std::numbers::pi * part(step - warmup, options.total_steps - warmup)));
    case ScheduleType::warmup_stable_decay: {
      const int64_t decay = std::clamp<int64_t>(options.decay_steps, 0, options.total_steps - warmup);
      const int64_t into_decay = step - (options.total_steps - decay);
      if (into_decay <= 0) return 1.0;
      const double done = part(into_decay, decay);
      return 1.0 - (options.decay_shape == DecayShape::linear ? done : std::sqrt(done)) * drop;
    }
  }
  return 1.0;
}

}  // namespace

std::string_view name_of(ScheduleType type) {
  switch (type) {
    case ScheduleType::constant:
      return "constant";
    case ScheduleType::linear:
      return "linear";
    case ScheduleType::cosine:
      return "cosine";
    case ScheduleType::warmup_stable_decay:
      return "warmup_stable_decay";
  }
  return "";
}

ScheduleType schedule_type_from_name(std::string_view name) {
  return enum_from_name("learning-rate schedule", name,
                        {ScheduleType::constant, ScheduleType::linear, ScheduleType::cosine, ScheduleType::warmup_stable_decay});
}

std::string_view name_of(DecayShape shape) { return shape == DecayShape::linear ? "linear" : "one_minus_sqrt"; }

DecayShape decay_shape_from_name(std::string_view name) {
  return enum_from_name("decay shape", name, {DecayShape::linear, DecayShape::one_minus_sqrt});
}

double scheduled_learning_rate(const ScheduleOptions& options, double peak, int64_t step) {
  const int64_t warmup = std::max<int64_t>(1, options.warmup_steps);
  step = std::max<int64_t>(1, step);
  if (options.type != ScheduleType::constant) step = std::min(step, std::max<int64_t>(1, options.total_steps));
  if (step <= warmup) return peak * part(step, warmup);
  return peak * after_warmup(options, warmup, step);
}

}  // namespace dmuon
