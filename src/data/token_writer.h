// Writes one token file front to back under a temporary name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dmuon/core/file.h"
#include "dmuon/core/hash.h"
#include "dmuon/data/token_source.h"

namespace dmuon {

// XXH3 of a file, in constant memory: what a manifest says of a shard, and xxhsum -H3 of the file. StorageError.
std::string file_hash(const std::string& path);

class TokenWriter {
 public:
  // `width`: 2 or 4 bytes an id (nanogpt: 2). Creates `path` with a suffix; ids must fit the width.
  // `expected_tokens` goes into the header; another number in the end costs reading the file again for its hash.
  TokenWriter(const std::string& path, TokenFormat format, int width, int64_t expected_tokens);
  ~TokenWriter();  // removes the temporary file unless published
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;

  void write(std::span<const std::byte> packed);  // ids of `width` bytes, little-endian
  int64_t tokens() const { return tokens_; }
  int64_t bytes() const { return file_->bytes_written(); }
  const std::string& path() const { return path_; }
  const std::string& hash() const { return hash_; }  // after close(): XXH3 of the whole file (xxhsum -H3)
  void close();                                      // completes header and file on disk
  void publish();                                    // after close(): takes its name, replacing what has it

 private:
  std::string path_, temporary_;
  TokenFormat format_;
  int width_;
  int64_t tokens_ = 0, expected_tokens_;
  bool published_ = false;
  std::unique_ptr<OutputFile> file_;
  StreamingHash streaming_hash_;
  std::string hash_;
};

}  // namespace dmuon
