#include "train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "dmuon/core/hash.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/clipping.h"
#include "train/batches.h"
#include "train/evaluation.h"
#include "train/non_finite.h"
#include "train/prompts.h"
#include "train/samples.h"
#include "train/signals.h"
#include "train/votes.h"

namespace dmuon {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

Trainer::Trainer(TrainerParts parts, TrainState state)
    : parts_(parts),
      state_(state),
      shape_(step_shape(parts.configuration, parts.world.size())),
      training_(WindowDataset::shuffled(parts.data.training, parts.configuration.model.context_length,
                                        static_cast<uint64_t>(parts.configuration.seed))),
      stages_(make_unit_stages(parts.configuration.distribution, parts.sharded.inventory())),
      progress_(state.step, parts.configuration.training.steps, parts.configuration.logging.interval, parts.world.rank() == 0),
      stop_(parts.world),
      last_saved_step_(state.step) {
  votes_ = voted_elements(parts.sharded.rules(), parts.sharded.inventory()).voted > 0;
  if (parts.data.validation) validation_ = WindowDataset::sequential(parts.data.validation, parts.configuration.model.context_length);
  agreed(parts_.world, [&] {
    // Now, not after hours of training.
    if (parts_.data.tokenizer && parts_.configuration.sample.tokens > 0) {
      prompt_ = encode_prompt(parts_.configuration.sample.prompt, "sample.prompt", *parts_.data.tokenizer, SpecialTokens::plain);
    }
    if (parts_.world.rank() == 0)
      metrics_file_ = std::make_unique<MetricsFile>(Path(parts_.configuration.output) / "metrics.jsonl", state_.step);
  });
}

// The watchdog sees hangs that no collective's deadline can. It waits twice as long, because a collective that expires knows
// whom it has waited for. Alone there is nobody to wait for, and a step may take as
// long as it takes.
void Trainer::enter(const std::string& phase, double deadline_seconds) {
  parts_.watchdog.enter(phase, parts_.world.size() > 1 ? 2.0 * deadline_seconds : 0.0);
}

RunResult Trainer::run() {
  const Configuration& configuration = parts_.configuration;
  const double step_limit = configuration.communication.step_timeout_seconds;
  parts_.sharded.set_deadline(step_limit);
  parts_.world.set_deadline(configuration.communication.checkpoint_timeout_seconds);
  if (state_.evaluation_pending) make_pending_evaluation();
  while (state_.step < configuration.training.steps && !stop_.requested()) {
    parts_.world.set_deadline(step_limit);
    step();
    // What follows may keep one rank busy while others wait for it.
    parts_.world.set_deadline(configuration.communication.checkpoint_timeout_seconds);
    if (due(configuration.training.replica_check_interval) || last()) parts_.sharded.check_replicas();
    if (due(configuration.evaluation.interval) || last()) metrics_.validation_loss = evaluate_now();
    progress_.step(metrics_);
    // Known to all ranks alike; without a line to write nobody waits for rank 0.
    if (logs_step() || metrics_.validation_loss || metrics_.skipped || state_.evaluation_pending)
      agreed(parts_.world, [&] {
        if (metrics_file_) append_metrics();
      });
    if (due(configuration.checkpoint.interval) || (last() && configuration.checkpoint.at_end) || stop_.requested()) save_now();
    if (due(configuration.sample.interval)) sample_now();
    if (stop_.requested()) save_now();  // the request came while it sampled
  }
  const bool trained = state_.step >= configuration.training.steps;
  if (trained && !due(configuration.sample.interval)) {
    sample_now();
    if (stop_.requested()) save_now();
  }
  const bool finished = trained && !state_.evaluation_pending && !sample_left_out_;
  progress_.finish();
  parts_.watchdog.leave();
  return finished ? RunResult::done : RunResult::stopped;
}

void Trainer::append_metrics() {
  try {
    metrics_file_->append(to_json(metrics_));
  } catch (const StorageError& error) {
    if (parts_.configuration.checkpoint.on_failure != "continue") throw;
    log_warning(text(error.what(), "; training goes on (checkpoint.on_failure = continue)"));
  }
}

double Trainer::train_micro_batches(StepClock& clock) {
  const Block mine = block(shape_.global_batch, parts_.world.rank(), parts_.world.size());
  const double targets = static_cast<double>(shape_.global_batch * training_.length());
  std::vector<Tensor> losses;  // read at the end: until then a device need not be waited for
  parts_.sharded.begin_step(shape_.micro_batches);
  for (int64_t k = 0; k < shape_.micro_batches; ++k) {
    const int64_t first = std::min(mine.count, k * shape_.micro_batch_size);
    const int64_t count = std::min(shape_.micro_batch_size, mine.count - first);
    enter(text("step ", state_.step + 1, ", micro-batch ", k + 1), parts_.configuration.communication.step_timeout_seconds);
    clock.enter(StepPhase::forward);
    parts_.sharded.begin_micro_batch();
    if (count > 0) {
      ExecutionContext context{parts_.backend, parts_.backend.compute_stream()};
      context.dropout_seed = mix64(static_cast<uint64_t>(parts_.configuration.seed) ^ mix64(static_cast<uint64_t>(state_.step) + 1));
      context.first_sequence = mine.first + first;
      const HostTokenBatch batch = training_.batch(state_.samples + mine.first + first, count);
      losses.push_back(train_micro_batch(parts_.model, context, batch, 1.0 / targets, clock));
    }
    clock.enter(StepPhase::backward);
    parts_.sharded.end_micro_batch();
  }
  double sum = 0.0;
  for (const Tensor& loss : losses) sum += to_doubles(parts_.backend, loss)[0];
  return sum;
}

void Trainer::step() {
  const auto start = Clock::now();
  const ExposedSeconds exposed_before = parts_.sharded.exposed();
  const TrafficBytes sent_before = parts_.sharded.traffic(), votes_before = parts_.sharded.vote_traffic();
  const double targets = static_cast<double>(shape_.global_batch * training_.length());

  StepClock clock(parts_.trace, &parts_.backend.compute_stream());
  const double loss_sum = train_micro_batches(clock);
  // The end of the reductions and the agreement on the norm belong to the update: nothing can change before them.
  clock.enter(StepPhase::update);
  enter(text("update of step ", state_.step + 1), parts_.configuration.communication.step_timeout_seconds);
  const double extras[] = {loss_sum, stop_signal() != 0 ? 1.0 : 0.0, static_cast<double>(newton_schulz_calls_),
                           static_cast<double>(newton_schulz_guard_events_)};
  const GradientReport report = parts_.sharded.finish_gradients(extras);
  const double loss = report.sums[0] / targets;
  stop_.note(report.sums[1] > 0.0);
  // Summed over the ranks: a matrix that nobody holds is noticed as well as one that is updated twice.
  const int64_t expected_calls = expected_newton_schulz_calls();
  if (updated_ && report.sums[2] != static_cast<double>(expected_calls))
    throw AgreedError(ExitCode::numerical, text("step ", state_.step, " orthogonalised ", report.sums[2], " matrices, expected were ",
                                                expected_calls, ": this is a defect, please report it"));

  const bool finite = report.finite && std::isfinite(loss);
  ++state_.step;
  state_.samples += shape_.global_batch;
  state_.tokens += shape_.global_batch * training_.length();
  if (finite) {
    const double coefficient = clip_coefficient(report.norm, parts_.configuration.training.gradient_clip);
    std::vector<StepValues> values = step_values(parts_.rules, state_.step, coefficient);
    ++state_.updates;
    for (StepValues& value : values) value.step = state_.updates;
    const UpdateCounters counters = update(values);
    newton_schulz_calls_ = counters.newton_schulz_calls;
    newton_schulz_guard_events_ += counters.newton_schulz_guard_events;
    updated_ = true;
    if (counters.newton_schulz_guard_events > 0)
      log_warning(text("step ", state_.step, ": ", counters.newton_schulz_guard_events,
                       " Newton-Schulz results failed the guard and were computed again in the direct form"));
    parts_.backend.compute_stream().synchronize();
    state_.skips_in_a_row = 0;
  } else {
    updated_ = false;
    ++state_.skips_in_a_row;
    const std::string skipped = skip_or_end(parts_.configuration.training, state_, report, loss);
    if (parts_.world.rank() == 0) log_warning(skipped);
  }
  clock.enter(StepPhase::other);

  const ExposedSeconds& exposed = parts_.sharded.exposed();
  metrics_ = StepMetrics{};
  metrics_.step_seconds = seconds_since(start);
  metrics_.forward_seconds = clock.seconds(StepPhase::forward);
  metrics_.backward_seconds = clock.seconds(StepPhase::backward);
  metrics_.update_seconds = clock.seconds(StepPhase::update);
  metrics_.exposed.forward = exposed.forward - exposed_before.forward;
  metrics_.exposed.backward = exposed.backward - exposed_before.backward;
  metrics_.exposed.update = exposed.update - exposed_before.update;
  const TrafficBytes sent = parts_.sharded.traffic();
  metrics_.sent = {sent.inside - sent_before.inside, sent.between - sent_before.between};
  if (votes_ && finite) {
    const TrafficBytes voted = parts_.sharded.vote_traffic();
    metrics_.votes = observes_votes() ? vote_metrics(parts_.sharded.vote_report()) : VoteMetrics{};
    // Looking at votes is no part of a step: the next one without a line to write does not have it.
    metrics_.step_seconds -= metrics_.votes->observe_seconds;
    metrics_.update_seconds -= metrics_.votes->observe_seconds;
    metrics_.votes->bytes_sent = voted.inside + voted.between - votes_before.inside - votes_before.between;
  }
  metrics_.newton_schulz_guard_events = static_cast<int64_t>(report.sums[3]);
  account(report, loss, finite);
}

UpdateCounters Trainer::update(std::span<const StepValues> values) {
  try {
    return parts_.sharded.update(values, observes_votes());
  } catch (const NumericalError& error) {  // the same on every rank
    end_by_message(parts_.configuration.training, state_.step, error);
  }
}

// Over all ranks in one update: every matrix once, except where every rank or every worker that votes computes all of them.
int64_t Trainer::expected_newton_schulz_calls() const {
  const bool everywhere = parts_.configuration.distribution.method != "owner";
  const RuleTable& table = parts_.sharded.rules();
  int64_t calls = 0;
  for (size_t rule = 0; rule < table.rules.size(); ++rule) {
    const int64_t once = parts_.rules.routing.share[rule].matrices * table.rules[rule]->newton_schulz_calls();
    const bool votes = table.rules[rule]->agreement() == Agreement::vote;
    calls += once * (votes ? parts_.sharded.grid().replicas : everywhere ? parts_.world.size() : 1);
  }
  return calls;
}

void Trainer::account(const GradientReport& report, double loss, bool finite) {
  metrics_.step = state_.step;
  metrics_.tokens = state_.tokens;
  metrics_.train_loss = loss;
  metrics_.gradient_norm = report.norm;
  const ScheduledRule& matrix = parts_.rules.schedules[static_cast<size_t>(parts_.rules.matrix_rule)];
  metrics_.learning_rate = scheduled_learning_rate(matrix.schedule, matrix.peak_learning_rate, state_.step);
  metrics_.tokens_per_second = static_cast<double>(shape_.global_batch * training_.length()) / metrics_.step_seconds;
  metrics_.peak_bytes = parts_.backend.allocator().statistics().total.peak + parts_.staging().total.peak;
  metrics_.skipped = !finite;
}

std::optional<double> Trainer::evaluate_now() {
  state_.evaluation_pending = false;
  if (!validation_) return std::nullopt;
  enter("evaluation", 0);
  std::optional<double> loss;
  if (!stop_.requested())
    loss = evaluate(
        parts_.backend, parts_.world, parts_.model, *validation_, parts_.configuration.evaluation.batch_size,
        parts_.configuration.evaluation.maximum_tokens, [this] { parts_.sharded.skip_forward_pass(); }, [this] { return stop_.ask(); });
  state_.evaluation_pending = !loss;
  return loss;
}

void Trainer::make_pending_evaluation() {
  const std::optional<double> loss = evaluate_now();
  if (!loss) return;
  if (parts_.world.rank() == 0) progress_.say(text("step ", state_.step, " | validation ", format_number(*loss)));
  agreed(parts_.world, [&] {
    if (metrics_file_) metrics_file_->add_validation_loss(state_.step, *loss);
  });
}

void Trainer::sample_now() {
  const SampleConfiguration& sample = parts_.configuration.sample;
  if (!parts_.data.tokenizer || sample.tokens == 0 || sample.count == 0) return;
  sample_left_out_ = stop_.requested();
  if (sample_left_out_) return;
  enter("sampling", 0);
  parts_.sharded.wait_for_parameters();
  const SampleRequest request{.configuration = sample,
                              .tokenizer = *parts_.data.tokenizer,
                              .prompt = prompt_,
                              .step = state_.step,
                              .by_all = *std::max_element(stages_.begin(), stages_.end()) == 3};
  const std::optional<std::string> samples = generate_samples(parts_.backend, parts_.world, parts_.model, request, stop_);
  sample_left_out_ = !samples;
  if (!samples || parts_.world.rank() != 0) return;
  progress_.say("");
  std::fwrite(samples->data(), 1, samples->size(), stdout);
  std::fflush(stdout);
  try {
    append_samples(Path(parts_.configuration.output) / "samples.txt", *samples);
  } catch (const StorageError& error) {
    log_warning(text(error.what(), "; the samples above are not kept"));
  }
}

void Trainer::save_now() {
  if (last_saved_step_ == state_.step) return;
  const CheckpointConfiguration& checkpoint = parts_.configuration.checkpoint;
  const double limit = parts_.configuration.communication.checkpoint_timeout_seconds;
  enter("checkpoint", limit);
  parts_.world.set_deadline(limit);  // until the next step
  SaveRequest request;
  request.state = state_;
  request.configuration_hash = hash_to_hex(configuration_hash(parts_.configuration));
  request.dataset_fingerprint = hash_to_hex(hash_name(parts_.data.fingerprint.dump()));
  request.texts.emplace_back("configuration.json", to_json(parts_.configuration).dump(2) + "\n");
  request.texts.emplace_back("model.json", parts_.model_settings.dump(2) + "\n");
  request.texts.emplace_back("dataset.json", parts_.data.fingerprint.dump(2) + "\n");
  request.texts.emplace_back("tuning.json", parts_.tuning.dump(2) + "\n");
  request.texts.emplace_back("rules.json", describe_rules(parts_.rules, parts_.sharded.rules(), parts_.sharded.inventory()).dump(2) + "\n");
  request.texts.emplace_back("plan.json", plan_json(parts_.sharded.plan(), parts_.sharded.vote_plan(), parts_.configuration.distribution,
                                                    parts_.sharded.inventory(), parts_.sharded.rules())
                                                  .dump(2) +
                                              "\n");
  if (parts_.data.tokenizer) request.texts.emplace_back("tokenizer.json", parts_.data.tokenizer->to_json().dump() + "\n");
  try {
    parts_.keeper.save(parts_.sharded, request);
    failed_saves_ = 0;
    last_saved_step_ = state_.step;
    if (parts_.world.rank() == 0) progress_.say(text("saved step ", state_.step));
  } catch (const AgreedError& error) {
    // Only a storage failure may be survived, only if the configuration says so, and never the save that the run ends with.
    if (error.exit_code() != ExitCode::storage || checkpoint.on_failure != "continue" || ++failed_saves_ >= checkpoint.maximum_failures ||
        stop_.requested() || last())
      throw;
    if (parts_.world.rank() == 0)
      log_warning(text("step ", state_.step, " was not saved (failure ", failed_saves_, " of at most ", checkpoint.maximum_failures - 1,
                       "): ", error.what()));
  }
}

}  // namespace dmuon
