#include "data/token_writer.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "data/token_file.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

std::string file_hash(const std::string& path) {
  const auto close = [](std::FILE* stream) { std::fclose(stream); };
  const std::unique_ptr<std::FILE, decltype(close)> stream(std::fopen(path.c_str(), "rbe"), close);
  if (!stream) throw StorageError(text("cannot read ", path, ": ", std::strerror(errno)));
  StreamingHash hash;
  std::vector<std::byte> block(size_t{1} << 20);
  for (size_t got = block.size(); got == block.size();) {
    got = std::fread(block.data(), 1, block.size(), stream.get());
    if (std::ferror(stream.get())) throw StorageError(text("cannot read ", path, ": ", std::strerror(errno)));
    hash.update(block.data(), static_cast<int64_t>(got));
  }
  return hash_to_hex(hash.digest());
}

TokenWriter::TokenWriter(const std::string& path, TokenFormat format, int width, int64_t expected_tokens)
    : path_(path),
      temporary_(text(path, ".tmp-", getpid())),
      format_(format),
      width_(width),
      expected_tokens_(expected_tokens),
      file_(std::make_unique<OutputFile>(temporary_)) {
  if (format_ != TokenFormat::llmc) return;
  uint32_t header[llmc_header_bytes / 4] = {};
  header[0] = width == 2 ? llmc_magic_uint16 : llmc_magic_uint32;
  header[1] = width == 2 ? llmc_version_uint16 : llmc_version_uint32;
  header[2] = static_cast<uint32_t>(expected_tokens);
  try {
    file_->write(header, sizeof header);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(temporary_, ignored);
    throw;
  }
  streaming_hash_.update(header, sizeof header);
}

TokenWriter::~TokenWriter() {
  std::error_code ignored;
  if (!published_) std::filesystem::remove(temporary_, ignored);
}

void TokenWriter::write(std::span<const std::byte> packed) {
  const int64_t bytes = std::ssize(packed);
  file_->write(packed.data(), bytes);
  streaming_hash_.update(packed.data(), bytes);
  tokens_ += bytes / width_;
}

void TokenWriter::close() {
  const auto count = static_cast<int32_t>(tokens_);
  const bool correct = format_ == TokenFormat::llmc && tokens_ != expected_tokens_;
  if (correct) file_->overwrite(8, &count, sizeof count);
  file_->close();
  hash_ = correct ? file_hash(temporary_) : hash_to_hex(streaming_hash_.digest());
}

void TokenWriter::publish() {
  std::error_code failure;
  std::filesystem::rename(temporary_, path_, failure);
  if (failure) throw StorageError(text("cannot rename ", temporary_, " to ", path_, ": ", failure.message()));
  published_ = true;
}

}  // namespace dmuon
