// Checkpoints described for people: what dmuon_checkpoint prints.
#pragma once

#include <cstdint>
#include <string>

#include "dmuon/core/file.h"
#include "dmuon/io/checkpoint_reader.h"

namespace dmuon {

// A step directory itself, otherwise the highest step of `path` or of its subdirectory "checkpoints", complete or not.
// CheckpointError if there is none.
Path newest_checkpoint_path(const Path& path);

// Step, tokens, parameters, run, the optimizer's rules, and tables of the files and tensors.
std::string describe_checkpoint(const CheckpointReader& reader);
// One row for each checkpoint of a directory. CheckpointError if there is none.
std::string describe_checkpoints(const Path& directory);

int64_t total_bytes(const CheckpointReader& reader);
// How many replicas saved states of their own: one more than the highest replica in a key, 0 if there is none.
int saved_replicas(const CheckpointReader& reader);

}  // namespace dmuon
