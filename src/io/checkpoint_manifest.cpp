#include "io/checkpoint_manifest.h"

#include <algorithm>
#include <charconv>

#include "dmuon/core/error.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/text.h"
#include "dmuon/io/checkpoint.h"

namespace dmuon {
namespace {

constexpr std::string_view hash_member = "\"manifest_hash\": \"";
constexpr std::string_view manifest_end = "\"\n}\n";

uint64_t hash_of(std::string_view content) { return hash_bytes(content.data(), static_cast<int64_t>(content.size())); }

void check_own_hash(const Path& path, std::string_view content) {
  const size_t member = content.rfind(hash_member);
  const std::string_view tail = member == std::string_view::npos ? std::string_view() : content.substr(member + hash_member.size());
  const auto stored =
      tail.size() == 16 + manifest_end.size() && tail.substr(16) == manifest_end ? hash_from_hex(tail.substr(0, 16)) : std::nullopt;
  if (!stored) throw CheckpointError(text(path.string(), " is truncated or not a checkpoint's manifest: it does not end with its hash"));
  const uint64_t found = hash_of(content.substr(0, member));
  if (found != *stored)
    throw CheckpointError(
        text(path.string(), " is damaged: its content has the hash ", hash_to_hex(found), ", it was written with ", hash_to_hex(*stored)));
}

}  // namespace

std::string write_manifest(const Json& manifest) {
  std::string content = manifest.dump(1);
  content.resize(content.size() - 2);  // the closing "\n}"
  content += ",\n ";
  const uint64_t hash = hash_of(content);
  return text(content, hash_member, hash_to_hex(hash), manifest_end);
}

Json read_manifest(const Path& path) {
  const std::string content = read_file(path, manifest_bytes_limit);
  try {
    Json manifest = parse_json(content, path.string());
    const Json* format = manifest.is_object() ? manifest.find("format") : nullptr;
    if (format == nullptr || !format->is_string() || format->as_string() != manifest_format)
      throw CheckpointError(
          text(path.string(), " is not the manifest of a dmuon checkpoint (\"format\" must be \"", manifest_format, "\")"));
    // Before the hash, because a newer version may protect itself in another way.
    const int64_t version = manifest.at("format_version").as_integer();
    if (version < 1 || version > checkpoint_format_version)
      throw CheckpointError(text(path.string(), " has checkpoint format version ", version, "; this build reads versions 1 to ",
                                 checkpoint_format_version, ". Use the dmuon version that wrote it or a newer one"));
    check_own_hash(path, content);
    return manifest;
  } catch (const ConfigError& failure) {
    throw CheckpointError(text(path.string(), " is damaged or not a checkpoint's manifest: ", failure.what()));
  }
}

std::optional<uint64_t> hash_from_hex(std::string_view digits) {
  const bool plain = std::all_of(digits.begin(), digits.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  uint64_t value = 0;
  if (digits.size() != 16 || !plain || std::from_chars(digits.data(), digits.data() + 16, value, 16).ec != std::errc()) return std::nullopt;
  return value;
}

bool is_plain_file_name(std::string_view name) {
  const auto bad = [](char c) { return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  return !name.empty() && name.size() <= 255 && name.front() != '.' && std::none_of(name.begin(), name.end(), bad);
}

std::optional<int64_t> step_from_name(std::string_view name) {
  constexpr std::string_view prefix = "step-";
  int64_t step = 0;
  if (!name.starts_with(prefix)) return std::nullopt;
  const char* end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + prefix.size(), end, step);
  if (error != std::errc() || stop != end || step < 0 || checkpoint_name(step) != name) return std::nullopt;
  return step;
}

}  // namespace dmuon
