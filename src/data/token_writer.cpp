#include "data/token_writer.h"

#include <unistd.h>

#include <cstring>

#include "data/token_file.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

TokenWriter::TokenWriter(const std::string& path, TokenFormat format, int width)
    : path_(path),
      temporary_(text(path, ".tmp-", getpid())),
      format_(format),
      width_(width),
      file_(std::make_unique<OutputFile>(temporary_)) {
  if (format_ != TokenFormat::llmc) return;
  uint32_t header[llmc_header_bytes / 4] = {};
  header[0] = width == 2 ? llmc_magic_uint16 : llmc_magic_uint32;
  header[1] = width == 2 ? llmc_version_uint16 : llmc_version_uint32;
  file_->write(header, sizeof header);
}

TokenWriter::~TokenWriter() {
  std::error_code ignored;
  if (!published_) std::filesystem::remove(temporary_, ignored);
}

void TokenWriter::write(std::span<const int32_t> ids) {
  const auto width = static_cast<size_t>(width_);
  packed_.resize(ids.size() * width);
  for (size_t i = 0; i < ids.size(); ++i) std::memcpy(packed_.data() + i * width, &ids[i], width);  // little-endian: low bytes first
  file_->write(packed_.data(), static_cast<int64_t>(packed_.size()));
  tokens_ += static_cast<int64_t>(ids.size());
}

void TokenWriter::close() {
  const auto count = static_cast<int32_t>(tokens_);
  if (format_ == TokenFormat::llmc) file_->overwrite(8, &count, sizeof count);
  file_->close();
}

void TokenWriter::publish() {
  std::error_code failure;
  std::filesystem::rename(temporary_, path_, failure);
  if (failure) throw StorageError(text("cannot rename ", temporary_, " to ", path_, ": ", failure.message()));
  published_ = true;
}

}  // namespace dmuon
