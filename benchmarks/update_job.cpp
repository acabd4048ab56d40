#include "update_job.h"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "dmuon/core/hash.h"
#include "dmuon/core/random.h"

namespace dmuon::bench {

GradientInjection random_gradients(Backend& backend, const int64_t& step) {
  return [&backend, &step](const std::string& parameter, int64_t first, const Tensor& gradient) {
    std::vector<float> values(static_cast<size_t>(gradient.elements()));
    const Random random(hash_name(parameter) + static_cast<uint64_t>(step), RandomStream::test);
    constexpr size_t period = 8191;  // as good as random for timing, and fast to make
    std::vector<float> some(period);
    for (size_t i = 0; i < period; ++i) some[i] = static_cast<float>(1e-3 * random.normal(i));
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t element = static_cast<size_t>(first) + i;
      values[i] = some[element % period] * (1.0f + static_cast<float>((element / period) % 97) * 0.01f);
    }
    backend.copy_from_host(backend.compute_stream(), values.data(), gradient);
  };
}

namespace {

ShardedModelOptions with_gradients(ShardedModelOptions options, GradientInjection inject) {
  options.inject = std::move(inject);
  return options;
}

}  // namespace

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double UpdateTurn::total_cpu() const { return std::accumulate(cpu_seconds.begin(), cpu_seconds.end(), 0.0); }

double UpdateTurn::balance() const {
  return *std::max_element(cpu_seconds.begin(), cpu_seconds.end()) * static_cast<double>(cpu_seconds.size()) / total_cpu();
}

UpdateJob::UpdateJob(Backend& backend, Communicator& world, Model& model, RuleTable rules, Plan plan, ShardedModelOptions options,
                     std::vector<double> learning_rates)
    : backend_(backend),
      world_(world),
      learning_rates_(std::move(learning_rates)),
      sharded_(backend, world, model, std::move(rules), std::move(plan),
               with_gradients(std::move(options), random_gradients(backend, step_))) {
  sharded_.initialize(1);
}

UpdateTurn UpdateJob::turn(bool until_published) {
  ++step_;
  sharded_.begin_step(1);
  sharded_.begin_micro_batch();
  sharded_.end_micro_batch();
  sharded_.finish_gradients({});
  std::vector<StepValues> values;
  for (double rate : learning_rates_) values.push_back({step_, rate, 1.0});
  sharded_.wait_for_parameters();
  backend_.compute_stream().synchronize();
  if (around) around(true);
  const double nothing[] = {0.0};
  world_.all_reduce(nothing, ReduceOperation::sum);
  const auto start = std::chrono::steady_clock::now();
  const double cpu_start = thread_seconds();
  sharded_.update(values);
  backend_.compute_stream().synchronize();
  const double cpu = thread_seconds() - cpu_start;
  if (until_published) sharded_.wait_for_parameters();
  const double mine[] = {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()};
  UpdateTurn turn;
  turn.seconds = world_.all_reduce(mine, ReduceOperation::maximum)[0];
  std::vector<double> cpus(static_cast<size_t>(world_.size()), 0.0);
  cpus[static_cast<size_t>(world_.rank())] = cpu;
  turn.cpu_seconds = world_.all_reduce(cpus, ReduceOperation::sum);
  if (around) around(false);
  return turn;
}

}  // namespace dmuon::bench
