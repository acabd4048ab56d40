// The manifest's text and the names that may stand in it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dmuon/core/file.h"
#include "dmuon/core/json.h"

namespace dmuon {

inline constexpr std::string_view manifest_name = "MANIFEST.json";
inline constexpr std::string_view manifest_format = "dmuon-checkpoint";
inline constexpr int64_t manifest_bytes_limit = int64_t{512} << 20;

// Indented JSON whose last member, "manifest_hash", is the XXH3 of all text before it: any changed byte shows.
std::string write_manifest(const Json& manifest);
// CheckpointError naming `path` if the text is no manifest, was changed or comes from a newer version.
Json read_manifest(const Path& path);

// 16 hexadecimal digits as written by hash_to_hex; nothing else.
std::optional<uint64_t> hash_from_hex(std::string_view text);

// A plain name of a file in the same directory: no separators, no control characters, not hidden. Keeps a manifest from
// pointing anywhere else.
bool is_plain_file_name(std::string_view name);

// The step of a name that checkpoint_name() makes, otherwise nothing.
std::optional<int64_t> step_from_name(std::string_view name);

}  // namespace dmuon
