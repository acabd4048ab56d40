// Stands for one rank of a job that does not exist: moves nothing, counts the bytes the real one would send. For dry runs.
#pragma once

#include <memory>

#include "dmuon/comm/communicator.h"
#include "train/distribution.h"

namespace dmuon {

// The groups that a sharded model splits off are those of the grid; one between nodes is known by its name.
// `shared`: grows by the memory through which ranks of one node meet, of this rank, for every group that is made.
std::unique_ptr<Communicator> make_counting_communicator(int rank, const RunGrid& run, std::shared_ptr<int64_t> shared = nullptr);

}  // namespace dmuon
