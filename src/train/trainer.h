// The training loop. Everything that can fail or that must be decided by all ranks together happens between steps, in one
// order on every rank.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/watchdog.h"
#include "dmuon/core/trace.h"
#include "train/checkpointing.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/run.h"
#include "train/step_clock.h"
#include "train/stop_request.h"

namespace dmuon {

struct TrainerParts {
  const Configuration& configuration;
  Communicator& world;
  Backend& backend;
  const TokenData& data;
  Model& model;
  Json model_settings;
  Json tuning;  // choices of tune_rules
  RunRules& rules;
  ShardedModel& sharded;
  CheckpointKeeper& keeper;
  Watchdog& watchdog;
  std::function<MemoryStatistics()> staging;  // of the communicators, which the backend's allocator does not know
  Trace* trace = nullptr;
};

enum class RunResult { done, stopped };

class Trainer {
 public:
  Trainer(TrainerParts parts, TrainState state);

  // Runs to the configured number of steps or until a signal; evaluates, samples, saves.
  RunResult run();

 private:
  void step();
  void append_metrics();
  double train_micro_batches(StepClock& clock);  // returns the sum of the losses of this rank
  UpdateCounters update(std::span<const StepValues> values);
  int64_t expected_newton_schulz_calls() const;
  void account(const GradientReport& report, double loss, bool finite);
  // Nothing without validation data, and where the run is to stop: then the evaluation is pending.
  std::optional<double> evaluate_now();
  // The one that the run had no time for before it stopped, for the metrics of that step.
  void make_pending_evaluation();
  void sample_now();
  void save_now();
  // `deadline_seconds`: of the collectives in this phase (0: no limit).
  void enter(const std::string& phase, double deadline_seconds);
  bool last() const { return state_.step == parts_.configuration.training.steps; }
  bool due(int64_t interval) const { return interval > 0 && state_.step % interval == 0; }
  bool observes_votes() const { return votes_ && (logs_step() || due(parts_.configuration.evaluation.interval)); }
  bool logs_step() const { return due(parts_.configuration.logging.interval) || last(); }

  TrainerParts parts_;
  TrainState state_;
  StepShape shape_;
  WindowDataset training_;
  std::optional<WindowDataset> validation_;
  std::vector<int32_t> prompt_;             // of samples
  int64_t newton_schulz_calls_ = 0;         // of this rank in the update before
  int64_t newton_schulz_guard_events_ = 0;  // of this rank since the start of the program
  bool updated_ = false;
  std::unique_ptr<MetricsFile> metrics_file_;  // rank 0
  std::vector<int> stages_;                    // of units
  bool votes_ = false;                         // some tensors are voted on
  Progress progress_;
  StepMetrics metrics_;  // of the step just done
  StopRequest stop_;
  bool sample_left_out_ = false;  // because the run is to stop
  int failed_saves_ = 0;
  int64_t last_saved_step_;  // or the step it began with
};

}  // namespace dmuon
