// Collective saving and loading: whole logical tensors, written by their owners, found again by any number of ranks.
// The protocol on disk is io/checkpoint.h; this file lets all ranks agree between its steps.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dmuon/io/checkpoint_reader.h"
#include "dmuon/io/checkpoint_writer.h"
#include "dmuon/io/directory_lock.h"
#include "dmuon/shard/sharded_model.h"
#include "train/agreement.h"

namespace dmuon {

// What a run is besides tensors. Everything random is a function of seeds and counters, so these are all there is.
struct TrainState {
  int64_t step = 0;     // steps done, skipped ones included
  int64_t updates = 0;  // updates applied
  int64_t samples = 0;  // global sample index of the next step's first sequence
  int64_t tokens = 0;
  int64_t skips_in_a_row = 0;
  bool evaluation_pending = false;  // due after this step, and given up because the run was to stop: made when it resumes
};
Json to_json(const TrainState& state);
TrainState train_state_from_json(const Json& json);  // CheckpointError naming a missing key

struct SaveRequest {
  TrainState state;
  std::vector<std::pair<std::string, std::string>> texts;  // file name -> content, written by rank 0
  std::string configuration_hash;
  std::string dataset_fingerprint;
  Json extra = Json::object();  // into the manifest
};

class CheckpointKeeper {
 public:
  // Collective. Rank 0 locks the directory and removes what dead runs left behind. `keep`: complete checkpoints kept.
  CheckpointKeeper(Backend& backend, Communicator& world, Path directory, int64_t keep);

  // The checkpoint a run starts from: `resume` is "auto" (newest complete one, if any), "must" (the same, CheckpointError
  // if none), "never" (none; ConfigError if the directory holds some) or a path (ConfigError if the directory holds a
  // later step). Rank 0 proves every byte, then all ranks open it. Collective.
  std::unique_ptr<CheckpointReader> open(const std::string& resume);

  // Collective. Throws the error all ranks agreed on; the previous checkpoint then stands. NumericalError names the first
  // parameter that is not finite: such weights are never saved.
  void save(ShardedModel& model, const SaveRequest& request);

  // Fills masters and states of `model`, publishes, and compares all replicas. Collective.
  void load(ShardedModel& model, const CheckpointReader& reader);

  const std::string& run_id() const { return run_id_; }

 private:
  void require_finite(ShardedModel& model);

  Backend& backend_;
  Communicator& world_;
  Path directory_;
  int64_t keep_;
  std::string run_id_;
  Path resumed_from_;
  CrashPoints crash_;
  std::unique_ptr<DirectoryLock> lock_;
};

}  // namespace dmuon
