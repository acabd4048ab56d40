// How many threads a rank may use: its share of the processors it is allowed to run on.
#pragma once

#include <string>

#include "dmuon/comm/communicator.h"

namespace dmuon {

// Processors in this process's affinity mask, at least 1.
int allowed_processors();

// `requested` > 0 wins. Otherwise the size of this process's affinity mask, divided by the ranks of the same host that
// have an overlapping mask; at least 1. Collective.
int threads_for_rank(Communicator& world, int requested);

}  // namespace dmuon
