#include "training.h"

#include <chrono>

namespace dmuon::bench {

Training::Training(const std::string& config, int threads)
    : configuration_(load_configuration(config)), backend_(make_cpu_backend({.mode = HostMode::normal, .threads = threads})) {
  plan_ = make_model(configuration_, TokenData{}, models());
  rules_ = make_rules(configuration_.optimizer, plan_.model->inventory());
  shape_ = step_shape(configuration_, 1);
  Plan plan = make_run_plan(configuration_, plan_.model->inventory(), rules_.table, 1);
  sharded_ = std::make_unique<ShardedModel>(*backend_, *self_, *plan_.model, std::move(rules_.table), std::move(plan));
  sharded_->initialize(1);
}

Training::Seconds Training::step() {
  const int64_t length = configuration_.model.context_length;
  const Random random(static_cast<uint64_t>(++steps_), RandomStream::test);
  const auto vocabulary = static_cast<uint64_t>(plan_.model->facts().vocabulary_size);
  Seconds seconds;
  PassSeconds pass;
  sharded_->begin_step();
  for (int64_t first = 0; first < shape_.global_batch; first += shape_.micro_batch_size) {
    HostTokenBatch batch;
    batch.sequences = std::min(shape_.micro_batch_size, shape_.global_batch - first);
    batch.length = length;
    for (int64_t i = 0; i < batch.sequences * length; ++i) {
      batch.tokens.push_back(static_cast<int32_t>(random.below(vocabulary, static_cast<uint64_t>(first * length + i))));
      batch.targets.push_back(static_cast<int32_t>(random.below(vocabulary, static_cast<uint64_t>(first * length + i), 1)));
    }
    batch.valid_targets = batch.sequences * length;
    sharded_->begin_micro_batch();
    ExecutionContext context{*backend_, backend_->compute_stream()};
    train_micro_batch(*plan_.model, context, batch, 1.0 / static_cast<double>(tokens_per_step()), pass);
    sharded_->end_micro_batch();
  }
  const auto start = std::chrono::steady_clock::now();
  const double extras[] = {0.0};
  const GradientReport report = sharded_->finish_gradients(extras);
  if (!report.finite) throw NumericalError("the benchmark's gradients are not finite");
  sharded_->update(step_values(rules_, steps_, 1.0));
  backend_->compute_stream().synchronize();
  seconds.update = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  seconds.forward = pass.forward;
  seconds.backward = pass.backward;
  return seconds;
}

}  // namespace dmuon::bench
