// What a checkpoint is on disk, and which ones a directory holds.
//
//   <directory>/
//     .lock                              the run that uses the directory (directory_lock.h)
//     latest                             name of the newest checkpoint: a hint for people, never trusted by the reader
//     step-00001000/
//       model-00001-of-00004.safetensors   whole logical tensors keyed by parameter name; rank r writes file r + 1
//       optimizer-00000.safetensors        optimizer state keyed "<parameter>#<state>[@<replica>]", written by rank 0
//       train_state.json configuration.json ...   texts, written by rank 0
//       MANIFEST.json                      written last: size and XXH3 of every file, dtype, shape, XXH3, file and
//                                          writer of every tensor, and a hash over itself
//     step-00002000.tmp-<run id>/        a save under way or interrupted; never read
//     .trash-step-00000500-<run id>/     a checkpoint being deleted; never read
//
// Optimizer state is the job's, or every replica's own: the momentum of tensors that are voted on, one per worker, saved whole
// for each under "@0", "@1", ... (a replica is a worker; its shards' pieces are put together as those of any tensor). The
// parameters themselves and states that all replicas share are saved once. As many replicas resume each with its own state;
// any other number starts, every one of them, from the average of the saved states.
//
// A rank without tensors writes a file without tensors, so that the set of names is always complete. A checkpoint is
// complete when its manifest is whole and every file it lists has the size it lists; a directory is renamed to its final
// name only when that holds, so that nothing half-written is ever taken for whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/file.h"

namespace dmuon {

// The version this build writes and the newest it reads.
inline constexpr int64_t checkpoint_format_version = 1;

std::string checkpoint_name(int64_t step);         // "step-00001000"
std::string model_file_name(int rank, int ranks);  // "model-00001-of-00004.safetensors"
std::string optimizer_file_name(int rank);         // "optimizer-00000.safetensors"

// Key of an optimizer state: "<parameter>#<state>", or "<parameter>#<state>@<replica>" where every replica has its own
// (replica >= 0). A key without '#' is a parameter. ConfigError if a part contains '#' or '@' or is empty.
std::string state_key(std::string_view parameter, std::string_view state, int replica = -1);
struct CheckpointKey {
  std::string parameter;
  std::string state;  // empty: the parameter itself
  int replica = -1;   // -1: one state for the whole job
};
CheckpointKey parse_checkpoint_key(std::string_view key);  // CheckpointError if it is none

// How much is proven before a checkpoint is used.
enum class CheckpointCheck {
  sizes,   // manifest whole, every file there with its size, every tensor where the manifest says
  hashes,  // the content of every file as well
};

struct CheckpointCandidate {
  Path path;
  int64_t step = 0;
  std::string problem;  // empty: complete; otherwise what is wrong, with the file and tensor
};
// Every directory named like a checkpoint, by ascending step (never by time stamp), judged by `check`. Temporary and
// trashed directories and foreign names are not listed. Empty if `directory` does not exist.
std::vector<CheckpointCandidate> scan_checkpoints(const Path& directory, CheckpointCheck check = CheckpointCheck::sizes);
// Only the complete ones, by ascending step.
std::vector<CheckpointCandidate> list_checkpoints(const Path& directory);

// The newest complete checkpoint of `directory`, or nothing if it holds none at all. An incomplete or damaged newer one is
// skipped with a warning that names what is wrong with it. CheckpointError if there are checkpoints but none is complete:
// a run must not silently begin again.
std::optional<Path> find_checkpoint(const Path& directory, CheckpointCheck check = CheckpointCheck::hashes);

// What a user's PATH means: a step directory is taken as it is, any other directory stands for its newest complete
// checkpoint, directly in it or in its subdirectory "checkpoints". CheckpointError if there is none.
Path resolve_checkpoint(const Path& path, CheckpointCheck check = CheckpointCheck::hashes);

}  // namespace dmuon
