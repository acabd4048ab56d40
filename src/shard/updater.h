// Walks what this rank updates, window by window of units in the order in which the next forward pass needs them, in the
// batches of the plan, and hands each finished window to the publisher.
#pragma once

#include <span>
#include <vector>

#include "shard/publisher.h"
#include "shard/reducer.h"
#include "shard/unit_store.h"

namespace dmuon {

class Updater {
 public:
  Updater(ShardJob& job, UnitStore& store, Reducer& reducer, Publisher& publisher, const UseOrder& order);

  // values[rule] of this step. Returns what this rank's rules have counted.
  UpdateCounters update(std::span<const StepValues> values);

 private:
  // Targets (indices into UnitStore::targets) of one rule that share a call.
  struct Call {
    int rule = 0;
    std::vector<size_t> targets;
  };
  struct Window {
    std::vector<int> units;  // by first use
    std::vector<Call> calls;
  };
  UpdateCounters counters() const;
  void run(const Call& call, const std::vector<Tensor>& gathered);

  ShardJob& job_;
  UnitStore& store_;
  Reducer& reducer_;
  Publisher& publisher_;
  std::vector<Window> windows_;      // by first use
  std::vector<Tensor> gather_pool_;  // of the gather baseline, by place in a window
};

}  // namespace dmuon
