// Files that are either old or new, never half: temporary file, write, fsync, rename, fsync of the directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace dmuon {

using Path = std::filesystem::path;

// Whole file as bytes. StorageError if it cannot be read, names path and cause. `limit` guards against foreign files.
std::string read_file(const Path& path, int64_t limit = int64_t{1} << 31);
// Replaces `path` atomically and durably. StorageError names path, cause and (when the disk is full) wanted and free bytes.
void write_file_atomically(const Path& path, std::string_view content);
void fsync_directory(const Path& directory);
// Renames a directory entry and fsyncs the parent; fails if `to` exists.
void rename_durably(const Path& from, const Path& to);
// Free bytes on the file system that holds `directory`.
int64_t free_bytes(const Path& directory);

// A new file written front to back; not visible as complete until close() returned. Every write is checked.
class OutputFile {
 public:
  explicit OutputFile(const Path& path);  // creates or truncates
  ~OutputFile();                          // closes without promising durability
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(const void* data, int64_t bytes);
  void write(std::string_view text) { write(text.data(), static_cast<int64_t>(text.size())); }
  // Replaces bytes already written, [offset, offset + bytes): a header that counts what followed it.
  void overwrite(int64_t offset, const void* data, int64_t bytes);
  int64_t bytes_written() const { return written_; }
  void close();  // fdatasync, close, both checked

 private:
  Path path_;
  int descriptor_ = -1;
  int64_t written_ = 0;
};

// A regular file mapped read-only; its length is taken once. StorageError / DataError name the path.
class MappedFile {
 public:
  explicit MappedFile(const Path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  std::span<const std::byte> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  const Path& path() const { return path_; }

 private:
  Path path_;
  const std::byte* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace dmuon
