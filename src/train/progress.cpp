#include "train/progress.h"

#include <unistd.h>

#include <cstdio>

#include "dmuon/core/log.h"
#include "dmuon/core/text.h"

namespace dmuon {

Progress::Progress(int64_t first_step, int64_t steps, int64_t interval, bool enabled)
    : first_step_(first_step), steps_(steps), interval_(interval), enabled_(enabled), terminal_(enabled && isatty(STDERR_FILENO) == 1) {}

std::string Progress::describe(const StepMetrics& m) const {
  const auto percent_of = [](double share) { return std::to_string(static_cast<int>(100.0 * share + 0.5)); };
  const auto percent = [&](double seconds) {
    return std::to_string(static_cast<int>(100.0 * seconds / std::max(m.step_seconds, 1e-9) + 0.5));
  };
  std::string step = std::to_string(m.step);
  const std::string total = std::to_string(steps_);
  step.insert(0, total.size() - std::min(total.size(), step.size()), ' ');
  std::string line = text("step ", step, "/", total, " | loss ", m.train_loss ? format_number(*m.train_loss) : "-");
  if (m.validation_loss) line += text(" | validation ", format_number(*m.validation_loss));
  if (m.learning_rate) line += text(" | rate ", format_number(*m.learning_rate, 5));
  if (m.gradient_norm) line += text(" | norm ", format_number(*m.gradient_norm, 3));
  if (m.votes && m.votes->agreement)
    line += text(" | votes agree ", percent_of(*m.votes->agreement), " %, tied ", percent_of(*m.votes->tie_share), " %");
  line += text(" | ", format_count(static_cast<int64_t>(m.tokens_per_second)), " tokens/s | ", format_number(1000.0 * m.step_seconds, 0),
               " ms (forward ", percent(m.forward_seconds), " backward ", percent(m.backward_seconds), " update ",
               percent(m.update_seconds), ", waited ", percent(m.exposed.forward), "/", percent(m.exposed.backward), "/",
               percent(m.exposed.update), " %) | ", format_bytes(m.peak_bytes));
  if (m.skipped) line += " | SKIPPED";
  if (m.step < steps_) line += text(" | left ", format_duration(seconds_per_step_ * static_cast<double>(steps_ - m.step)));
  return line;
}

void Progress::step(const StepMetrics& metrics) {
  if (!enabled_) return;
  ++seen_;
  // The first steps fault pages and fill caches: they would spoil the estimate.
  const double weight = seen_ <= 3 ? 1.0 : std::max(0.05, 1.0 / static_cast<double>(seen_ - 2));
  seconds_per_step_ += weight * (metrics.step_seconds - seconds_per_step_);
  const bool logged = metrics.step % interval_ == 0 || metrics.step == steps_ || metrics.step == first_step_ + 1 || metrics.skipped;
  if (logged) {
    say(describe(metrics));
  } else if (terminal_) {
    const auto now = std::chrono::steady_clock::now();
    if (live_ && now - last_draw_ < std::chrono::milliseconds(100)) return;
    last_draw_ = now;
    std::fprintf(stderr, "\r\033[K%s", describe(metrics).c_str());
    std::fflush(stderr);
    live_ = true;
  }
}

void Progress::clear_live() {
  if (!live_) return;
  std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  live_ = false;
}

void Progress::say(const std::string& line) {
  if (!enabled_) return;
  clear_live();
  log_information(line);
}

void Progress::finish() { clear_live(); }

}  // namespace dmuon
