// Walks what this rank updates, window by window of units in the order in which the next forward pass needs them, in the
// batches of the plan, and hands each finished window to the publisher. Votes are taken before anything changes.
#pragma once

#include <span>
#include <vector>

#include "shard/publisher.h"
#include "shard/reducer.h"
#include "shard/unit_store.h"
#include "shard/update_call.h"
#include "shard/vote_step.h"

namespace dmuon {

class Updater {
 public:
  Updater(ShardJob& job, UnitStore& store, Reducer& reducer, Publisher& publisher, const UseOrder& order);

  // values[rule] of this step. Returns what this rank's rules have counted.
  UpdateCounters update(std::span<const StepValues> values, bool observe_votes);
  const VoteReport& vote_report() const { return votes_->observed(); }
  const VoteStep& votes() const { return *votes_; }

 private:
  struct Window {
    std::vector<int> units;  // by first use
    std::vector<UpdateCall> calls;
  };
  void plan_calls(const UseOrder& order);
  UpdateCounters counters() const;
  void run(const UpdateCall& call, const std::vector<Tensor>& gathered);

  ShardJob& job_;
  UnitStore& store_;
  Reducer& reducer_;
  Publisher& publisher_;
  std::vector<Window> windows_;      // by first use
  std::unique_ptr<VoteStep> votes_;  // of the windows' calls
  std::vector<Tensor> gather_pool_;  // of the gather baseline, by place in a window
};

}  // namespace dmuon
