// Which of the interchangeable matrices, and which of the slots, a plan's counts stand for. None of it changes a load
// (it may lower one where batches of a window meet); it spreads what travels together over slots, nodes and links.
#pragma once

#include "plan/work.h"

namespace dmuon {

// Slot of the index-th owner in the order of the schedule, on a grid of `nodes` replicas with `rails` shards each:
// consecutive indices use different rails and rotate over the nodes. rail = index mod rails, node = (index +
// s * floor(index / rails)) mod nodes with the least s for which rails + s and nodes have no common divisor. Any
// nodes * rails consecutive indices meet every slot once.
int spread_slot(int64_t index, int nodes, int rails);

// Exchanges batches of one class between windows so that a window's matrices spread over the slots.
void spread_windows(const Work& work, Counts& counts);

// Owner per tensor (-1 where not whole): inside a group the tensors go where their unit has the fewest elements; slots
// are renamed by spread_slot.
std::vector<int> spread_owners(const Work& work, const Counts& counts, const std::vector<PlanTensor>& tensors, int units, int replicas);

}  // namespace dmuon
