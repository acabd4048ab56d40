// Deleting old checkpoints, and what interrupted saves and deletions left behind. Both by rank 0 only, under the lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dmuon/core/file.h"
#include "dmuon/io/crash_points.h"
#include "dmuon/io/directory_lock.h"

namespace dmuon {

struct RetentionPolicy {
  int64_t keep_last = 3;                   // complete checkpoints kept, by step number; at least 1
  int64_t newest_step = -1;                // the step just published; later ones are another lineage (damaged, or left by a
                                           // run that fell back) and neither counted nor touched; negative: all count
  int64_t keep_every = 0;                  // steps divisible by it stay for ever; 0: none
  std::vector<int64_t> pinned_steps = {};  // stay for ever (best, named by the user, ...)
  Path resumed_from = {};                  // stays while this run lives; empty: none
};

// Runs after a publish. Counts complete checkpoints only and never touches incomplete or foreign directories; orders by step
// number, never by time stamp. A checkpoint is renamed to trash first, so that a kill leaves no gutted one behind.
// A failed deletion is logged and not fatal. Returns the names that were removed. ConfigError if keep_last < 1.
std::vector<std::string> apply_retention(const Path& directory, const RetentionPolicy& policy, std::string_view run_id,
                                         const CrashPoints& crash = {});

// At start: removes temporary and trashed directories of runs that are gone; needs the lock as proof that no other run is
// writing them. Returns the names that were removed; failures are logged.
std::vector<std::string> remove_leftovers(const Path& directory, const DirectoryLock& lock);

}  // namespace dmuon
