// The binary layouts of token files: what their first bytes promise and whether the file keeps it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "dmuon/data/token_source.h"

namespace dmuon {

inline constexpr int64_t llmc_header_bytes = 1024;
inline constexpr uint32_t llmc_magic_uint16 = 20240520;
inline constexpr uint32_t llmc_version_uint16 = 1;
inline constexpr uint32_t llmc_magic_uint32 = 20240801;
inline constexpr uint32_t llmc_version_uint32 = 7;

struct TokenLayout {
  int64_t header = 0;  // bytes before the first id
  int width = 0;       // bytes an id
  int64_t tokens = 0;
};

// Layout of a complete llm.c or nanoGPT file; DataError names found, expected and the remedy.
TokenLayout token_layout(TokenFormat format, std::string_view name, std::span<const std::byte> bytes);

// Format of one file by its first bytes and its name; see detect_format().
TokenFormat detect_format(const std::string& file, std::string_view format);

// Hash of up to 16 blocks of 64 KiB spread evenly from head to tail, and of the length.
std::string sampled_hash(std::span<const std::byte> bytes);

}  // namespace dmuon
