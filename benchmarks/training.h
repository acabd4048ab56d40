// A configuration made ready to train on random tokens, for the benchmarks of whole steps.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dmuon/comm/world.h"
#include "dmuon/config/configuration.h"
#include "dmuon/shard/sharded_model.h"
#include "support.h"
#include "train/batches.h"
#include "train/run.h"

namespace dmuon::bench {

// Starts the ranks of the job, runs `work` on each of them and ends the whole job when one fails. Rows of rank 0 count.
Json::Array run_job(const std::function<Json::Array(World& job)>& work);

// --set key=value (any number of them) and --device as overrides of a configuration.
inline const std::pair<std::string, std::string> set_option = {"set", "key=value of the configuration; may be given again"};
std::vector<std::string> overrides_of(const Arguments& arguments);

class Training {
 public:
  // Alone, on the device that the configuration names; the CPU where that is "auto".
  Training(const std::string& config, const std::vector<std::string>& overrides, int threads);
  // Collective: this rank's share of a job. `world` and `trace` (null: none) outlive it. Every rank reads the same file and
  // overrides (key=value).
  Training(const std::string& config, const std::vector<std::string>& overrides, int threads, Communicator& world, Trace* trace = nullptr);

  struct Seconds {
    double forward = 0, backward = 0, update = 0;
    double model() const { return forward + backward; }
    double step() const { return forward + backward + update; }
  };
  // The update ends when every published parameter has arrived if `until_published`, else when the slots are done.
  Seconds step(bool until_published = false);
  // The update alone, on random gradients, until every published parameter has arrived.
  Seconds update_only();

  const Configuration& configuration() const { return configuration_; }
  Backend& backend() { return *backend_; }
  Model& model() { return *plan_.model; }
  ShardedModel& sharded() { return *sharded_; }
  const RunGrid& grid() const { return grid_; }
  // Of all ranks together.
  int64_t tokens_per_step() const { return shape_.global_batch * configuration_.model.context_length; }
  // The rate of the best product of this backend in the type that the model computes in, among square ones and the model's own.
  double best_product();
  double model_flops() {
    return model().facts().flops_per_token(configuration_.model.context_length) * static_cast<double>(tokens_per_step());
  }

 private:
  Training(std::unique_ptr<Communicator> self, Communicator* world, const std::string& config, const std::vector<std::string>& overrides,
           int threads, Trace* trace);
  void update(StepClock& clock, bool until_published);

  Configuration configuration_;
  std::unique_ptr<Communicator> self_;     // where no other was given
  std::unique_ptr<Communicator> divided_;  // into virtual nodes, where the configuration asks for them
  Communicator& world_;
  std::unique_ptr<Backend> backend_;
  ModelPlan plan_;
  RunRules rules_;
  RunGrid grid_;
  StepShape shape_;
  std::unique_ptr<ShardedModel> sharded_;
  int64_t steps_ = 0;
  bool inject_ = false;  // random gradients instead of the reduced ones
};

}  // namespace dmuon::bench
