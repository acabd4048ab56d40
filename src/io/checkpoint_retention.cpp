#include "dmuon/io/checkpoint_retention.h"

#include <algorithm>

#include "dmuon/core/error.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "dmuon/io/checkpoint.h"
#include "io/checkpoint_manifest.h"

namespace dmuon {
namespace {

constexpr std::string_view trash_prefix = ".trash-";

bool is_kept_for_ever(const CheckpointCandidate& candidate, const RetentionPolicy& policy) {
  if (policy.keep_every > 0 && candidate.step % policy.keep_every == 0) return true;
  if (std::find(policy.pinned_steps.begin(), policy.pinned_steps.end(), candidate.step) != policy.pinned_steps.end()) return true;
  std::error_code error;
  return !policy.resumed_from.empty() && std::filesystem::equivalent(candidate.path, policy.resumed_from, error);
}

bool is_leftover(const std::string& name) {
  const size_t suffix = name.find(".tmp-");
  const bool unfinished = suffix != std::string::npos && (step_from_name(name.substr(0, suffix)) || name.substr(0, suffix) == "latest");
  return unfinished || name.starts_with(trash_prefix);
}

}  // namespace

std::vector<std::string> apply_retention(const Path& directory, const RetentionPolicy& policy, std::string_view run_id,
                                         const CrashPoints& crash) {
  if (policy.keep_last < 1)
    throw ConfigError(text("retention must keep at least the newest checkpoint, found keep_last = ", policy.keep_last));
  crash.at("before_retention");
  std::vector<CheckpointCandidate> complete;
  try {
    complete = list_checkpoints(directory);
  } catch (const StorageError& failure) {
    log_warning(text("could not look for old checkpoints (training goes on): ", failure.what()));
  }
  if (policy.newest_step >= 0)
    std::erase_if(complete, [&](const CheckpointCandidate& candidate) { return candidate.step > policy.newest_step; });
  const size_t kept = std::min(complete.size(), static_cast<size_t>(policy.keep_last));
  complete.resize(complete.size() - kept);  // the newest steps stay

  std::vector<std::string> removed;
  for (const CheckpointCandidate& candidate : complete) {
    if (is_kept_for_ever(candidate, policy)) continue;
    const std::string name = candidate.path.filename().string();
    const Path trash = directory / text(trash_prefix, name, "-", run_id);
    try {
      rename_durably(candidate.path, trash);
      crash.at("mid_retention");
      std::filesystem::remove_all(trash);
      removed.push_back(name);
    } catch (const std::exception& failure) {
      log_warning(text("could not delete the old checkpoint ", candidate.path.string(), " (training goes on): ", failure.what()));
    }
  }
  crash.at("after_retention");
  return removed;
}

std::vector<std::string> remove_leftovers(const Path& directory, const DirectoryLock& lock) {
  std::error_code error;
  if (!std::filesystem::equivalent(directory, lock.directory(), error))
    throw ConfigError(text("the lock of ", lock.directory().string(), " does not cover ", directory.string()));
  std::vector<std::string> found, removed;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error))
    if (const std::string name = entry->path().filename().string(); is_leftover(name)) found.push_back(name);
  std::sort(found.begin(), found.end());
  for (const std::string& name : found) {
    std::filesystem::remove_all(directory / name, error);
    if (error) {
      log_warning(text("could not remove the leftover ", (directory / name).string(), ": ", error.message()));
    } else {
      log_information(text("removed the leftover of an interrupted run: ", (directory / name).string()));
      removed.push_back(name);
    }
  }
  return removed;
}

}  // namespace dmuon
