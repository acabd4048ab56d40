// What ranks compare before and while they train.
#pragma once

#include <vector>

#include "shard/publisher.h"

namespace dmuon {

// Collective. Ranks must have the same grid, stages, wire dtypes, plan and orders of collectives: otherwise
// CommunicationError naming the first rank that differs and the first line in which it does.
void require_equal_jobs(ShardJob& job, const UseOrder& order);

// Hash of the elements as they lie in memory.
uint64_t hash_tensor(Backend& backend, const Tensor& tensor, uint64_t seed);

// `values`: one hash per unit of the values that this rank computes with. `masters`: empty, or one per unit of the masters of
// its slot that other replicas keep, too. Throws CommunicationError naming the first unit and rank that differ. Collective.
void require_equal_values(ShardJob& job, const std::vector<uint64_t>& values, const std::vector<uint64_t>& masters);

}  // namespace dmuon
