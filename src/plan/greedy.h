// Owners by longest processing time first (Graham 1969) over batches, then local improvement. Deterministic: ties go to
// the lowest index.
#pragma once

#include <optional>

#include "plan/work.h"

namespace dmuon {

// The better of two starts, each improved: whole cheapest batches placed longest first, and single matrices placed
// longest first where they cost least in the batches that are there. With a memory bound that neither meets, matrices
// are placed by bytes. Empty when that does not fit either.
std::optional<Counts> greedy_counts(const Work& work);

// The matrix with the most bytes first, to the slot with the fewest. Empty when that breaks the memory bound.
std::optional<Counts> counts_by_bytes(const Work& work);

// Longest first without batches: every matrix costs what it costs alone. For comparison; ignores the memory bound.
double makespan_without_batches(const Work& work);

// Lowers the largest load while moving some matrices of one group off the fullest slot, or exchanging them for
// matrices of another group, makes the larger of the two slots' loads smaller. Keeps the memory bound. `slots`: only
// between these; empty: all.
void improve(const Work& work, Counts& counts, const std::vector<int>& slots = {});

}  // namespace dmuon
