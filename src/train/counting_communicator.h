// Stands for one rank of a job that does not exist: moves nothing, counts the bytes the real one would send. For dry runs.
#pragma once

#include <memory>

#include "dmuon/comm/communicator.h"
#include "train/distribution.h"

namespace dmuon {

// The groups that a sharded model splits off are those of the grid; one between nodes is known by its name.
std::unique_ptr<Communicator> make_counting_communicator(int rank, const RunGrid& run);

}  // namespace dmuon
