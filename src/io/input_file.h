// A regular file read at arbitrary positions by pread. Its length is taken once; a file that became shorter gives an error.
#pragma once

#include <atomic>
#include <cstdint>

#include "dmuon/core/file.h"

namespace dmuon {

class InputFile {
 public:
  // CheckpointError if it is not a regular file (a pipe, device or directory is never opened); StorageError otherwise.
  explicit InputFile(const Path& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const Path& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  // Exactly [offset, offset + bytes); StorageError if the file cannot deliver it.
  void read(int64_t offset, void* destination, int64_t bytes) const;
  // Bytes that read() has delivered so far.
  int64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }
  // XXH3 of [offset, offset + bytes), in bounded memory.
  uint64_t hash(int64_t offset, int64_t bytes) const;
  uint64_t hash() const { return hash(0, bytes_); }

 private:
  Path path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
  mutable std::atomic<int64_t> bytes_read_{0};
};

}  // namespace dmuon
