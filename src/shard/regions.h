// The regions of a unit's buffer. Tensors that agree by mean come first, cut into a slot per rank of the job; those that agree
// by vote follow, cut into a slot per shard, in every replica alike. A region is what collectives move: none mixes two.
#pragma once

#include <vector>

#include "dmuon/comm/rank_grid.h"
#include "dmuon/plan/plan.h"

namespace dmuon {

struct Range {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

struct Region {
  int index = 0;  // among the regions of all units
  int unit = 0;
  bool vote = false;
  int64_t begin = 0, elements = 0;         // in the unit's buffer
  std::vector<UnitLayout::Entry> entries;  // offsets in the unit's buffer
  // Relative to the region: this rank's slot, what it keeps masters of, and the segment of its shard.
  Range slot, masters, coarse;
  std::vector<int64_t> shard_cuts;   // of the region, a segment per shard
  std::vector<int64_t> column_cuts;  // of this rank's coarse segment, a segment per replica; empty: it stays in the node

  bool between_nodes() const { return !column_cuts.empty(); }
  bool inside_node() const { return shard_cuts.size() > 2; }
  bool moves() const { return between_nodes() || inside_node(); }
};

struct UnitBuffer {
  std::vector<UnitLayout::Entry> entries;  // of all regions, by offset
  int64_t elements = 0;
  std::vector<Region> regions;  // at least one; one without tensors only where the unit has none
};

// `vote` may have no units. `replicated`: every rank keeps all masters.
std::vector<UnitBuffer> make_unit_buffers(const Plan& mean, const Plan& vote, const RankGrid& grid, int rank, bool replicated);

}  // namespace dmuon
