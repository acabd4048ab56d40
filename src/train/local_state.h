// Optimizer state that every replica has for itself (local states of tensors that are voted on) in checkpoints: its keys,
// and what a job with another number of replicas starts from.
#pragma once

#include <span>
#include <string_view>

#include "dmuon/io/checkpoint_reader.h"
#include "dmuon/shard/sharded_model.h"

namespace dmuon {

// Whether a parameter's rule agrees by vote.
bool is_voted(const RuleTable& table, int parameter);

// Whether this state of a parameter exists once per replica: a local state of a rule that votes. Its key ends in "@<replica>".
bool is_per_replica(const RuleTable& table, int parameter, const StateSpecification& state);

// Bytes of all tensors of a checkpoint of this model.
int64_t checkpoint_bytes(const ShardedModel& model);

// Elements from `first` on of a state that every replica has for itself, as replica `replica` of `replicas` starts with it.
// With as many replicas as saved (`saved`, by saved_replicas) its own; otherwise the average of all saved ones, added in float64 in the
// order of the replicas, the same for every replica. CheckpointError as CheckpointReader::read_tensor.
void read_local_state(const CheckpointReader& reader, std::string_view parameter, std::string_view state, int replica, int replicas,
                      int saved, int64_t first, std::span<float> values);

}  // namespace dmuon
