#include "data/token_file.h"

#include <bit>
#include <cstring>

#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/text.h"

static_assert(std::endian::native == std::endian::little, "token files are little-endian and read as they are");

namespace dmuon {
namespace {

uint32_t word(std::span<const std::byte> bytes, size_t index) {
  uint32_t value = 0;
  if (bytes.size() >= 4 * (index + 1)) std::memcpy(&value, bytes.data() + 4 * index, 4);
  return value;
}

bool is_llmc_magic(uint32_t magic) { return magic == llmc_magic_uint16 || magic == llmc_magic_uint32; }

bool starts_with(std::span<const std::byte> bytes, std::string_view prefix) {
  return bytes.size() >= prefix.size() && std::memcmp(bytes.data(), prefix.data(), prefix.size()) == 0;
}

void refuse_swapped(std::string_view name, uint32_t magic) {
  if (is_llmc_magic(__builtin_bswap32(magic)))
    throw DataError(text(name, ": byte-swapped magic, found ", magic, ", expected ", __builtin_bswap32(magic),
                         "; the file was written on a big-endian machine: write it again in little-endian order"));
}

// What llm.c and others write that is no token shard.
std::string_view foreign_kind(std::span<const std::byte> bytes) {
  switch (word(bytes, 0)) {
    case 20240326:
      return "an llm.c model";
    case 20240327:
      return "an llm.c debug state";
    case 20240328:
      return "an llm.c tokenizer";
    case 20240522:
      return "an llm.c evaluation set";
    case 20240527:
      return "an llm.c optimizer state";
    default:
      break;
  }
  using namespace std::string_view_literals;
  if (starts_with(bytes, "BIN.TOK\n"sv)) return "an llmq token file";
  if (starts_with(bytes, "\x93NUMPY"sv)) return "a NumPy array";
  if (starts_with(bytes, "\x1f\x8b"sv)) return "compressed by gzip";
  if (starts_with(bytes, "\x28\xb5\x2f\xfd"sv)) return "compressed by zstd";
  if (starts_with(bytes,
                  "\xfd"
                  "7zXZ"sv))
    return "compressed by xz";
  if (starts_with(bytes, "PK\x03\x04"sv)) return "a zip archive";
  return {};
}

void refuse_foreign(std::string_view name, std::span<const std::byte> bytes) {
  if (const std::string_view kind = foreign_kind(bytes); !kind.empty())
    throw DataError(text(name, ": this is ", kind, "; expected text, an llm.c token shard or a nanoGPT .bin file"));
}

TokenLayout llmc_layout(std::string_view name, std::span<const std::byte> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  const uint32_t magic = word(bytes, 0), version = word(bytes, 1);
  if (size < 4) throw DataError(text(name, ": truncated, found ", size, " bytes, expected a header of ", llmc_header_bytes));
  refuse_swapped(name, magic);
  refuse_foreign(name, bytes);
  if (!is_llmc_magic(magic))
    throw DataError(text(name, ": not an llm.c token shard, found magic ", magic, ", expected ", llmc_magic_uint16, " (uint16 ids) or ",
                         llmc_magic_uint32, " (uint32 ids); if it is headerless uint16, set data.format to nanogpt"));
  if (size < llmc_header_bytes)
    throw DataError(text(name, ": truncated, found ", size, " bytes, expected a header of ", llmc_header_bytes, "; fetch it again"));
  const uint32_t expected = magic == llmc_magic_uint16 ? llmc_version_uint16 : llmc_version_uint32;
  if (version != expected)
    throw DataError(text(name, ": magic ", magic, " with version ", version, ", expected version ", expected,
                         "; write it again with dmuon_data tokenize"));
  const auto tokens = std::bit_cast<int32_t>(word(bytes, 2));
  if (tokens <= 0) throw DataError(text(name, ": the header announces ", tokens, " tokens, expected at least one"));
  const int width = magic == llmc_magic_uint16 ? 2 : 4;
  if (const int64_t wanted = llmc_header_bytes + int64_t{tokens} * width; size != wanted)
    throw DataError(text(name, ": ", size < wanted ? "truncated" : "too long", ", the header announces ", tokens, " tokens, which makes ",
                         wanted, " bytes, found ", size, "; fetch or write it again"));
  return {llmc_header_bytes, width, tokens};
}

TokenLayout nanogpt_layout(std::string_view name, std::span<const std::byte> bytes) {
  refuse_swapped(name, word(bytes, 0));
  if (is_llmc_magic(word(bytes, 0)))
    throw DataError(
        text(name, ": starts with llm.c's magic ", word(bytes, 0), ", expected headerless nanoGPT ids; set data.format to llmc or auto"));
  if (bytes.size() % 2 != 0)
    throw DataError(text(name, ": found ", bytes.size(),
                         " bytes, expected an even number (uint16 ids without a header); the file is truncated or "
                         "not a nanoGPT .bin"));
  return {0, 2, static_cast<int64_t>(bytes.size() / 2)};
}

}  // namespace

TokenLayout token_layout(TokenFormat format, std::string_view name, std::span<const std::byte> bytes) {
  if (bytes.empty()) throw DataError(text(name, ": the file is empty; expected tokens"));
  return format == TokenFormat::llmc ? llmc_layout(name, bytes) : nanogpt_layout(name, bytes);
}

TokenFormat detect_format(const std::string& file, std::string_view format) {
  if (format == "text") return TokenFormat::text;
  if (format == "nanogpt") return TokenFormat::nanogpt;
  if (format == "llmc") return TokenFormat::llmc;
  if (format != "auto") throw ConfigError(text("data.format is \"", format, "\", expected auto, text, nanogpt or llmc"));
  const MappedFile mapped(file);
  const std::span<const std::byte> bytes = mapped.bytes();
  if (bytes.empty()) throw DataError(text(file, ": the file is empty; expected text or tokens"));
  refuse_swapped(file, word(bytes, 0));
  if (is_llmc_magic(word(bytes, 0))) return TokenFormat::llmc;
  if (std::string_view(file).ends_with(".bin")) {
    if (word(bytes, 0) / 10000 == 2024) refuse_foreign(file, bytes);  // other bytes may well be ids
    return TokenFormat::nanogpt;
  }
  refuse_foreign(file, bytes);
  if (const auto* zero = std::memchr(bytes.data(), 0, std::min<size_t>(bytes.size(), 4096)))
    throw DataError(text(file, ": found a zero byte at offset ", static_cast<const std::byte*>(zero) - bytes.data(),
                         ", so it isn't text; set data.format if it is text or token ids all the same"));
  return TokenFormat::text;
}

std::string sampled_hash(std::span<const std::byte> bytes) {
  constexpr int64_t block = int64_t{1} << 16, blocks = 16;
  const auto size = static_cast<int64_t>(bytes.size());
  if (size <= block * blocks) return hash_to_hex(hash_bytes(bytes.data(), size, static_cast<uint64_t>(size)));
  StreamingHash hash;
  hash.update(&size, sizeof size);
  for (int64_t i = 0; i < blocks; ++i) hash.update(bytes.data() + (size - block) / (blocks - 1) * i, block);
  hash.update(bytes.data() + size - block, block);
  return hash_to_hex(hash.digest());
}

}  // namespace dmuon
