// A configuration made ready to train on random tokens, for the benchmarks of whole steps.
#pragma once

#include <memory>
#include <string>

#include "dmuon/config/configuration.h"
#include "dmuon/shard/sharded_model.h"
#include "train/batches.h"
#include "train/run.h"

namespace dmuon::bench {

class Training {
 public:
  Training(const std::string& config, int threads);

  struct Seconds {
    double forward = 0, backward = 0, update = 0;
    double model() const { return forward + backward; }
    double step() const { return forward + backward + update; }
  };
  Seconds step();

  const Configuration& configuration() const { return configuration_; }
  Backend& backend() { return *backend_; }
  Model& model() { return *plan_.model; }
  int64_t tokens_per_step() const { return shape_.global_batch * configuration_.model.context_length; }

 private:
  Configuration configuration_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Communicator> self_ = make_self_communicator();
  ModelPlan plan_;
  RunRules rules_;
  StepShape shape_;
  std::unique_ptr<ShardedModel> sharded_;
  int64_t steps_ = 0;
};

}  // namespace dmuon::bench
