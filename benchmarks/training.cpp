#include "training.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "dmuon/backend/device.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "train/devices.h"
#include "train/tuning.h"
#include "update_job.h"

namespace dmuon::bench {

Json::Array run_job(const std::function<Json::Array(World& job)>& work) {
  World world = World::start({.deadline_seconds = 3600});
  if (world.rank() != 0) configure_log({world.rank(), world.size(), LogLevel::warning, {}});
  Json::Array rows;
  try {
    rows = work(world);
  } catch (const std::exception& error) {
    if (world.size() == 1) throw;
    log_error(text("dmuon_bench: rank ", world.rank(), " failed: ", error.what()));
    world.abort(ExitCode::device);
  }
  world.finish();
  return rows;
}

namespace {

// distribution.nodes may ask for more nodes than the machine has, as in dmuon_train.
RunGrid grid_of(const Configuration& configuration, const Communicator& world) {
  return make_run_grid(configuration.distribution, world.size(), count_nodes(world), any_rule_votes(configuration.optimizer));
}

// The token r with a frequency like 1 / (r + 1), as Zipf found in texts: of 50,257 the first is 6 % of all. Backwards of embeddings
// depend on it.
int32_t frequent_first(double uniform, int64_t vocabulary) {
  const double rank = std::exp(uniform * std::log(static_cast<double>(vocabulary)));
  return static_cast<int32_t>(std::clamp<int64_t>(static_cast<int64_t>(rank) - 1, 0, vocabulary - 1));
}

std::unique_ptr<Communicator> divide(const Configuration& configuration, Communicator& world) {
  return divide_ranks(configuration.distribution, grid_of(configuration, world), world);
}

}  // namespace

Training::Training(const std::string& config, const std::vector<std::string>& overrides, int threads)
    : Training(make_self_communicator(), nullptr, config, overrides, threads, nullptr) {}

Training::Training(const std::string& config, const std::vector<std::string>& overrides, int threads, Communicator& world, Trace* trace)
    : Training(nullptr, &world, config, overrides, threads, trace) {}

Training::Training(std::unique_ptr<Communicator> self, Communicator* world, const std::string& config,
                   const std::vector<std::string>& overrides, int threads, Trace* trace)
    : configuration_(load_configuration(config, overrides)),
      self_(std::move(self)),
      divided_(world != nullptr ? divide(configuration_, *world) : nullptr),
      world_(divided_           ? *divided_
             : world != nullptr ? *world
                                : *self_),
      backend_(make_backend(configuration_.device == "auto" ? "cpu" : configuration_.device, BackendOptions{.threads = threads})),
      plan_(make_model(configuration_, TokenData{}, models())),
      rules_(make_rules(with_newton_schulz_dtype(configuration_, *backend_), plan_.model->inventory())),
      grid_(grid_of(configuration_, world_)),
      shape_(step_shape(configuration_, world_.size())) {
  const Inventory& inventory = plan_.model->inventory();
  tune_rules(world_, *backend_,
             {.configuration = configuration_,
              .inventory = inventory,
              .table = rules_.table,
              .slots = configuration_.distribution.method == "owner" ? world_.size() : 1,
              .vote_slots = grid_.grid.shards,
              .window_units = static_cast<int>(configuration_.distribution.window_units),
              .stored = {}});
  JobPlans plans = agree_on_plans(
      world_,
      {.configuration = configuration_.distribution, .inventory = inventory, .table = rules_.table, .grid = grid_.grid, .stored = {}});
  ShardedModelOptions options = sharded_options(configuration_.distribution, inventory, grid_.grid);
  options.trace = trace;
  options.inject = [this, random = random_gradients(*backend_, steps_)](const std::string& parameter, int64_t first,
                                                                        const Tensor& gradient) {
    if (inject_) random(parameter, first, gradient);
  };
  sharded_ = std::make_unique<ShardedModel>(*backend_, world_, *plan_.model, std::move(rules_.table), std::move(plans), std::move(options));
  sharded_->initialize(1);
}

std::vector<std::string> overrides_of(const Arguments& arguments) {
  std::vector<std::string> overrides{"device=" + device_name(arguments)};
  if (const auto given = arguments.own.find("set"); given != arguments.own.end()) {
    std::istringstream lines(given->second);
    for (std::string line; std::getline(lines, line);) overrides.push_back(line);
  }
  return overrides;
}

double Training::best_product() {
  const int64_t rows = std::min(tokens_per_step(), shape_.micro_batch_size * configuration_.model.context_length);
  const int64_t width = configuration_.model.width;
  std::vector<std::array<int64_t, 3>> shapes{{rows, width, width}, {rows, 4 * width, width}, {rows, width, 4 * width}};
  // A model that is small, as tests have it, is compared with its own products only.
  if (width >= 256)
    for (int64_t n : {1024, 2048}) shapes.push_back({n, n, n});
  if (width >= 256 && device_of(*backend_) != nullptr)
    for (int64_t n : {4096, 8192}) shapes.push_back({n, n, n});
  double best = 0.0;
  for (const auto& [m, n, k] : shapes)
    best = std::max(best, product_flops_per_second(*backend_, m, n, k, sharded_->options().compute_dtype));
  return best;
}

Training::Seconds Training::step(bool until_published) {
  const int64_t length = configuration_.model.context_length;
  const Random random(static_cast<uint64_t>(++steps_), RandomStream::test);
  const int64_t vocabulary = plan_.model->facts().vocabulary_size;
  const Block mine = block(shape_.global_batch, world_.rank(), world_.size());
  StepClock clock(nullptr, &backend_->compute_stream());
  sharded_->begin_step(shape_.micro_batches);
  for (int64_t k = 0; k < shape_.micro_batches; ++k) {
    const int64_t first = std::min(mine.count, k * shape_.micro_batch_size);
    HostTokenBatch batch;
    batch.sequences = std::min(shape_.micro_batch_size, mine.count - first);
    batch.length = length;
    const int64_t offset = (mine.first + first) * length;
    for (int64_t i = 0; i < batch.sequences * length; ++i) {
      batch.tokens.push_back(frequent_first(random.uniform(static_cast<uint64_t>(offset + i)), vocabulary));
      batch.targets.push_back(frequent_first(random.uniform(static_cast<uint64_t>(offset + i), 1), vocabulary));
    }
    batch.valid_targets = batch.sequences * length;
    clock.enter(StepPhase::forward);
    sharded_->begin_micro_batch();
    ExecutionContext context{*backend_, backend_->compute_stream()};
    if (batch.sequences > 0) train_micro_batch(*plan_.model, context, batch, 1.0 / static_cast<double>(tokens_per_step()), clock);
    clock.enter(StepPhase::backward);
    sharded_->end_micro_batch();
  }
  update(clock, until_published);
  return {clock.seconds(StepPhase::forward), clock.seconds(StepPhase::backward), clock.seconds(StepPhase::update)};
}

Training::Seconds Training::update_only() {
  ++steps_;
  StepClock clock(nullptr, &backend_->compute_stream());
  sharded_->begin_step(1);
  sharded_->begin_micro_batch();
  sharded_->end_micro_batch();
  inject_ = true;
  update(clock, true);
  inject_ = false;
  return {0.0, 0.0, clock.seconds(StepPhase::update)};
}

void Training::update(StepClock& clock, bool until_published) {
  clock.enter(StepPhase::update);
  const double extras[] = {0.0};
  const GradientReport report = sharded_->finish_gradients(extras);
  if (!report.finite) throw NumericalError("the benchmark's gradients are not finite");
  sharded_->update(step_values(rules_, steps_, 1.0));
  backend_->compute_stream().synchronize();
  if (until_published) sharded_->wait_for_parameters();
  clock.enter(StepPhase::other);
}

}  // namespace dmuon::bench
