// What one call of an update rule covers.
#pragma once

#include <vector>

#include "shard/unit_store.h"

namespace dmuon {

// Targets (indices into UnitStore::targets) of one rule that share a call.
struct UpdateCall {
  int rule = 0;
  std::vector<size_t> targets;
};

// The targets as the rule sees them: whole tensors in their shape, ranges of elements flat. `gathered`, by unit: where the
// gradients of targets without one of their own lie.
std::vector<UpdateItem> items_of(const ShardJob& job, UnitStore& store, const UpdateCall& call, const std::vector<Tensor>& gathered = {});

}  // namespace dmuon
