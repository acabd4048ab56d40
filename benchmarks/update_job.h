// One way to update a model on all ranks, ready to be timed without a forward or backward pass: gradients are injected.
#pragma once

#include <memory>

#include "dmuon/shard/sharded_model.h"

namespace dmuon::bench {

struct UpdateTurn {
  double seconds = 0.0;             // wall time of the slowest rank
  std::vector<double> cpu_seconds;  // by rank: of the thread that computes
  double total_cpu() const;
  double balance() const;  // largest / mean
};

// Fills reduced gradients: the same for a parameter whatever piece of it a rank holds, another one for every `step`.
GradientInjection random_gradients(Backend& backend, const int64_t& step);

class UpdateJob {
 public:
  // Collective. `model` outlives the job and belongs to it alone. `learning_rates`: one per rule.
  UpdateJob(Backend& backend, Communicator& world, Model& model, RuleTable rules, Plan plan, ShardedModelOptions options,
            std::vector<double> learning_rates);

  // One update with fresh random gradients. `until_published`: the time ends when every parameter has arrived.
  UpdateTurn turn(bool until_published);
  // Called before the timed part of a turn and after it: switches transports.
  std::function<void(bool begin)> around;
  const Plan& plan() const { return sharded_.plan(); }

 private:
  Backend& backend_;
  Communicator& world_;
  std::vector<double> learning_rates_;
  int64_t step_ = 0;
  ShardedModel sharded_;
};

// CPU time of the calling thread.
double thread_seconds();

}  // namespace dmuon::bench
