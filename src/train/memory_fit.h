// Whether a run fits into the memory of its hosts, asked before anything large is allocated: a host that runs out of memory ends a
// process without a word.
#pragma once

#include <string>
#include <vector>

#include "core/host_memory.h"
#include "dmuon/comm/communicator.h"
#include "dmuon/core/memory.h"

namespace dmuon {

// Of one rank.
struct RankMemory {
  std::string host;
  int64_t needed = 0;  // tensors at their most, beyond what the program holds already
  AvailableMemory available;
};

// The bound that leaves least.
struct MemoryFit {
  int64_t needed = 0;     // by `ranks` together
  int64_t available = 0;  // to them
  int ranks = 0;
  int largest_rank = 0;  // of them, which needs most
  std::string bound;     // what says so: "MemAvailable of /proc/meminfo and free swap"; empty where the system names no bound
  bool fits() const { return bound.empty() || needed <= available; }
};

// Ranks of a host share its memory, those of a control group its limit; each has its own address space. The ranks of a group read at
// slightly different moments: the highest number counts, because only what surely does not fit is refused. Pure.
MemoryFit judge_memory(const std::vector<RankMemory>& ranks);

// Of a rank of this run that is predicted to use `predicted` at most. Every rank throws the same AgreedError (ExitCode::device) where
// the ranks do not fit, with the numbers, the categories of the rank that needs most, and remedies. Collective.
void require_memory(Communicator& world, const MemoryStatistics& predicted);

}  // namespace dmuon
