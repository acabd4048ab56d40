// Writes one token file front to back under a temporary name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dmuon/core/file.h"
#include "dmuon/data/token_source.h"

namespace dmuon {

class TokenWriter {
 public:
  // `width`: 2 or 4 bytes an id (nanogpt: 2). Creates `path` with a suffix; ids must fit the width.
  TokenWriter(const std::string& path, TokenFormat format, int width);
  ~TokenWriter();  // removes the temporary file unless published
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void write(std::span<const int32_t> ids);
  int64_t tokens() const { return tokens_; }
  int64_t bytes() const { return file_->bytes_written(); }
  const std::string& path() const { return path_; }
  void close();    // completes header and file on disk
  void publish();  // after close(): takes its name, replacing what has it

 private:
  std::string path_, temporary_;
  TokenFormat format_;
  int width_;
  int64_t tokens_ = 0;
  bool published_ = false;
  std::unique_ptr<OutputFile> file_;
  std::vector<std::byte> packed_;
};

}  // namespace dmuon
