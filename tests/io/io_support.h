// What the io tests share: a directory of their own, byte surgery on files, and the text of an expected error.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"

namespace dmuon {

// Removed, with everything in it, at the end of the test. In memory where that is possible: hundreds of saves, each of them
// synced, would otherwise wait for the disk most of the time. TMPDIR overrides.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    const bool in_memory = std::getenv("TMPDIR") == nullptr && access("/dev/shm", W_OK | X_OK) == 0;
    const Path parent = in_memory ? Path("/dev/shm") : std::filesystem::temp_directory_path();
    std::string pattern = (parent / "dmuon-io-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw StorageError("no temporary directory");
    path_ = pattern;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const Path& path() const { return path_; }
  Path operator/(const std::string& name) const { return path_ / name; }

 private:
  Path path_;
};

inline void write_bytes(const Path& path, std::string_view content) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(content.data(), static_cast<std::streamsize>(content.size()));
  if (!file.flush()) throw StorageError(text("test could not write ", path.string()));
}

// The eight bytes in front of a safetensors header.
inline std::string length_prefix(uint64_t length) {
  std::string out;
  for (int i = 0; i < 8; ++i) out += static_cast<char>(length >> (8 * i));
  return out;
}

inline std::string safetensors_bytes(const std::string& header, const std::string& data = {}) {
  return length_prefix(header.size()) + header + data;
}

inline void flip_byte(const Path& path, int64_t offset, char mask = 1) {
  std::string content = read_file(path);
  content.at(static_cast<size_t>(offset)) ^= mask;
  write_bytes(path, content);
}

// The message of the E that `action` throws; empty when it throws nothing. Other exceptions pass through.
template <class E, class Action>
std::string message_of(Action&& action) {
  try {
    action();
  } catch (const E& failure) {
    return failure.what();
  }
  return {};
}

inline bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace dmuon
