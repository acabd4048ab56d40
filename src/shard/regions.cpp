#include "shard/regions.h"

namespace dmuon {
namespace {

// `replicas`: slots of the layout per shard.
Region make_region(const UnitLayout& layout, const RankGrid& grid, int replicas, int rank, bool replicated) {
  Region region;
  region.elements = layout.elements;
  const auto shard = static_cast<size_t>(grid.shard_of(rank));
  const auto per_shard = static_cast<size_t>(replicas);
  for (size_t s = 0; s <= static_cast<size_t>(grid.shards); ++s) region.shard_cuts.push_back(layout.cuts[s * per_shard]);
  region.coarse = {region.shard_cuts[shard], region.shard_cuts[shard + 1]};
  region.slot = region.coarse;
  if (replicas > 1) {
    const size_t first = shard * per_shard, slot = first + static_cast<size_t>(grid.replica_of(rank));
    for (size_t r = 0; r <= per_shard; ++r) region.column_cuts.push_back(layout.cuts[first + r] - layout.cuts[first]);
    region.slot = {layout.cuts[slot], layout.cuts[slot + 1]};
  }
  region.masters = replicated ? Range{0, layout.elements} : region.slot;
  return region;
}

}  // namespace

std::vector<UnitBuffer> make_unit_buffers(const Plan& mean, const Plan& vote, const RankGrid& grid, int rank, bool replicated) {
  std::vector<UnitBuffer> buffers;
  int index = 0;
  for (size_t unit = 0; unit < mean.units.size(); ++unit) {
    UnitBuffer buffer;
    const auto add = [&](const UnitLayout& layout, bool votes) {
      Region region = make_region(layout, grid, votes ? 1 : grid.replicas, rank, replicated);
      region.index = index++;
      region.unit = static_cast<int>(unit);
      region.vote = votes;
      region.begin = buffer.elements;
      for (UnitLayout::Entry entry : layout.entries) {
        entry.offset += region.begin;
        region.entries.push_back(entry);
        buffer.entries.push_back(entry);
      }
      buffer.elements += layout.elements;
      buffer.regions.push_back(std::move(region));
    };
    const bool votes = unit < vote.units.size() && !vote.units[unit].entries.empty();
    if (!mean.units[unit].entries.empty() || !votes) add(mean.units[unit], false);
    if (votes) add(vote.units[unit], true);
    buffers.push_back(std::move(buffer));
  }
  return buffers;
}

}  // namespace dmuon
