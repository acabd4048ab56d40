#include "dmuon/io/checkpoint_report.h"

#include <algorithm>
#include <map>
#include <vector>

#include "dmuon/core/error.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/text.h"
#include "io/checkpoint_manifest.h"

namespace dmuon {
namespace {

using Table = std::vector<std::vector<std::string>>;

std::string field(const Json& manifest, std::string_view key) {
  const Json* value = manifest.find(key);
  if (value == nullptr) return "-";
  if (value->is_string()) return value->as_string();
  return value->is_integer() && !value->is_negative() ? format_count(value->as_integer()) : value->dump();
}

// A rule is recognised by the states that it keeps: the checkpoint shows what is there, the configuration what was asked for.
std::string optimizer_rules(const CheckpointReader& reader) {
  std::map<std::string, std::vector<std::string>> states;  // of each parameter
  for (const CheckpointEntry& entry : reader.tensors()) {
    const CheckpointKey key = parse_checkpoint_key(entry.key);
    auto& known = states[key.parameter];
    if (!key.state.empty() && key.replica <= 0) known.push_back(key.replica < 0 ? key.state : key.state + " of each worker");
  }
  std::map<std::string, int64_t> count;
  for (const auto& [parameter, names] : states)
    if (reader.find(parameter) != nullptr) ++count[names.empty() ? "no state" : join(names, " + ")];
  std::vector<std::string> rules;
  for (const auto& [names, parameters] : count) rules.push_back(text(names, ": ", format_count(parameters), " tensors"));
  return rules.empty() ? "none" : join(rules, "; ");
}

Path existing_directory(const Path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) throw CheckpointError(text("no checkpoint at ", path.string(), ": it does not exist"));
  return scan_checkpoints(path).empty() ? path / "checkpoints" : path;
}

}  // namespace

int saved_replicas(const CheckpointReader& reader) {
  int replicas = 0;
  for (const CheckpointEntry& entry : reader.tensors()) replicas = std::max(replicas, parse_checkpoint_key(entry.key).replica + 1);
  return replicas;
}

int64_t total_bytes(const CheckpointReader& reader) {
  int64_t bytes = 0;
  for (const CheckpointFile& file : reader.files()) bytes += file.bytes;
  return bytes;
}

Path newest_checkpoint_path(const Path& path) {
  const Path named = path.has_filename() ? path : path.parent_path();  // "step-1/" means "step-1"
  std::error_code error;
  if (std::filesystem::exists(path / manifest_name, error) || step_from_name(named.filename().string())) return named;
  const auto found = scan_checkpoints(existing_directory(path));
  if (found.empty())
    throw CheckpointError(text("no checkpoint in ", path.string(), ": expected a directory such as ", checkpoint_name(1000)));
  return found.back().path;
}

std::string describe_checkpoint(const CheckpointReader& reader) {
  const Json& manifest = reader.manifest();
  int64_t parameters = 0, parameter_tensors = 0;
  for (const CheckpointEntry& entry : reader.tensors())
    if (parse_checkpoint_key(entry.key).state.empty()) {
      parameters += entry.shape.elements();
      ++parameter_tensors;
    }
  std::string out = text("checkpoint       ", reader.path().string(), "\n");
  out += text("step             ", format_count(reader.step()), "\n");
  out += text("tokens           ", field(manifest, "tokens"), "\n");
  out += text("parameters       ", format_count(parameters), " in ", format_count(parameter_tensors), " tensors\n");
  out += text("optimizer        ", optimizer_rules(reader), "\n");
  if (const int workers = saved_replicas(reader); workers > 0)
    out += text("workers          ", workers, workers == 1 ? ", which has" : ", each of which has",
                " optimizer state of its own (key@worker)\n");
  out += text("run              ", field(manifest, "run_id"), ", ", field(manifest, "ranks"), " ranks\n");
  out += text("configuration    ", field(manifest, "configuration_hash"), "\n");
  out += text("data             ", field(manifest, "dataset_fingerprint"), "\n");
  out += text("total            ", format_bytes(total_bytes(reader)), "\n\n");

  Table files{{"file", "size", "XXH3"}};
  for (const CheckpointFile& file : reader.files()) files.push_back({file.name, format_bytes(file.bytes), hash_to_hex(file.hash)});
  Table tensors{{"tensor", "dtype", "shape", "size", "file"}};
  for (const CheckpointEntry& entry : reader.tensors())
    tensors.push_back({entry.key, std::string(name_of(entry.dtype)), entry.shape.to_string(), format_bytes(entry.bytes),
                       reader.files()[entry.file].name});
  return text(out, format_table(files), "\n", format_table(tensors));
}

std::string describe_checkpoints(const Path& directory) {
  const Path place = existing_directory(directory);
  Table rows{{"step", "tokens", "size", "state", "path"}};
  for (const CheckpointCandidate& candidate : scan_checkpoints(place)) {
    if (!candidate.problem.empty()) {
      rows.push_back({format_count(candidate.step), "-", "-", "unusable: " + candidate.problem, candidate.path.string()});
      continue;
    }
    const CheckpointReader reader(candidate.path, CheckpointCheck::sizes);
    rows.push_back({format_count(candidate.step), field(reader.manifest(), "tokens"), format_bytes(total_bytes(reader)), "complete",
                    candidate.path.string()});
  }
  if (rows.size() == 1)
    throw CheckpointError(text("no checkpoint in ", directory.string(), ": expected a directory such as ", checkpoint_name(1000)));
  return format_table(rows);
}

}  // namespace dmuon
