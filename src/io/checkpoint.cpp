#include "dmuon/io/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "dmuon/core/error.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "dmuon/io/checkpoint_reader.h"
#include "io/checkpoint_manifest.h"

namespace dmuon {
namespace {

std::string numbered(const char* format, int64_t a, int64_t b = 0) {
  char buffer[96];
  std::snprintf(buffer, sizeof buffer, format, static_cast<long long>(a), static_cast<long long>(b));
  return buffer;
}

// Directories named like checkpoints, by ascending step.
std::vector<CheckpointCandidate> named_checkpoints(const Path& directory) {
  std::vector<CheckpointCandidate> found;
  std::error_code error;
  if (!std::filesystem::exists(directory, error)) return found;
  for (std::filesystem::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    const auto step = step_from_name(entry->path().filename().string());
    if (step && entry->is_directory(ignored)) found.push_back({entry->path(), *step, {}});
  }
  if (error) throw StorageError(text("cannot list ", directory.string(), ": ", error.message()));
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return found;
}

// Empty if the candidate is complete.
std::string problem_of(const CheckpointCandidate& candidate, CheckpointCheck check) {
  try {
    const CheckpointReader reader(candidate.path, check);
    if (reader.step() != candidate.step) return text("its manifest is of step ", reader.step());
    return {};
  } catch (const Error& failure) {
    return failure.what();
  }
}

}  // namespace

std::string checkpoint_name(int64_t step) { return numbered("step-%08lld", step); }
std::string model_file_name(int rank, int ranks) { return numbered("model-%05lld-of-%05lld.safetensors", rank + 1, ranks); }
std::string optimizer_file_name(int rank) { return numbered("optimizer-%05lld.safetensors", rank); }

std::string state_key(std::string_view parameter, std::string_view state, int replica) {
  for (const std::string_view part : {parameter, state})
    if (part.empty() || part.find_first_of("#@") != std::string_view::npos)
      throw ConfigError(text("\"", part, "\" cannot be part of a checkpoint key: it is empty or contains '#' or '@'"));
  return replica < 0 ? text(parameter, "#", state) : text(parameter, "#", state, "@", replica);
}

CheckpointKey parse_checkpoint_key(std::string_view key) {
  const auto refuse = [&] {
    throw CheckpointError(text("\"", key, "\" is not a checkpoint key; expected <parameter>[#<state>[@<replica>]]"));
  };
  CheckpointKey parsed;
  const size_t hash = key.find('#');
  parsed.parameter = key.substr(0, hash);
  if (parsed.parameter.empty() || parsed.parameter.find('@') != std::string::npos) refuse();
  if (hash == std::string_view::npos) return parsed;
  const std::string_view rest = key.substr(hash + 1);
  const size_t at = rest.find('@');
  parsed.state = rest.substr(0, at);
  if (parsed.state.empty() || parsed.state.find('#') != std::string::npos) refuse();
  if (at == std::string_view::npos) return parsed;
  const std::string_view digits = rest.substr(at + 1);
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, parsed.replica);
  if (error != std::errc() || stop != end || parsed.replica < 0) refuse();
  return parsed;
}

std::vector<CheckpointCandidate> scan_checkpoints(const Path& directory, CheckpointCheck check) {
  std::vector<CheckpointCandidate> found = named_checkpoints(directory);
  for (CheckpointCandidate& candidate : found) candidate.problem = problem_of(candidate, check);
  return found;
}

std::vector<CheckpointCandidate> list_checkpoints(const Path& directory) {
  std::vector<CheckpointCandidate> found = scan_checkpoints(directory);
  std::erase_if(found, [](const CheckpointCandidate& candidate) { return !candidate.problem.empty(); });
  return found;
}

std::optional<Path> find_checkpoint(const Path& directory, CheckpointCheck check) {
  std::vector<CheckpointCandidate> found = named_checkpoints(directory);
  std::string skipped;
  for (auto candidate = found.rbegin(); candidate != found.rend(); ++candidate) {
    const std::string problem = problem_of(*candidate, check);
    if (problem.empty()) {
      if (!skipped.empty())
        log_warning(text("FALLING BACK to checkpoint ", candidate->path.string(), " because newer ones cannot be used:", skipped));
      return candidate->path;
    }
    skipped += text("\n  ", candidate->path.string(), ": ", problem);
  }
  if (!skipped.empty())
    throw CheckpointError(
        text(directory.string(), " holds no checkpoint that can be used:", skipped, "\nRestore one, or move them away to begin anew"));
  return std::nullopt;
}

Path resolve_checkpoint(const Path& path, CheckpointCheck check) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) throw CheckpointError(text("no checkpoint at ", path.string(), ": it does not exist"));
  const Path named = path.has_filename() ? path : path.parent_path();  // "step-1/" means "step-1"
  if (std::filesystem::exists(path / manifest_name, error) || step_from_name(named.filename().string())) return named;
  for (const Path& directory : {path, path / "checkpoints"})
    if (const auto newest = find_checkpoint(directory, check)) return *newest;
  throw CheckpointError(text("no checkpoint in ", path.string(), ": expected a directory such as ", checkpoint_name(1000), " with ",
                             manifest_name, " in it"));
}

}  // namespace dmuon
