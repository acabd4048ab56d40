#include "io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "dmuon/core/error.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/text.h"

namespace dmuon {

InputFile::InputFile(const Path& path) : path_(path) {
  // Asked by name first, because merely opening a pipe or a device can block or have effects.
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) throw StorageError(text("cannot read ", path.string(), ": ", std::strerror(errno)));
  if (S_ISREG(info.st_mode)) {
    descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) throw StorageError(text("cannot read ", path.string(), ": ", std::strerror(errno)));
    if (fstat(descriptor_, &info) == 0 && S_ISREG(info.st_mode)) {
      bytes_ = info.st_size;
      return;
    }
    close(descriptor_);
  }
  throw CheckpointError(text(path.string(), " is not a regular file"));
}

InputFile::~InputFile() { close(descriptor_); }

void InputFile::read(int64_t offset, void* destination, int64_t bytes) const {
  char* next = static_cast<char*>(destination);
  while (bytes > 0) {
    const ssize_t got = pread(descriptor_, next, static_cast<size_t>(std::min<int64_t>(bytes, int64_t{1} << 30)), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw StorageError(text("cannot read ", path_.string(), " at byte ", offset, ": ", std::strerror(errno)));
    if (got == 0)
      throw StorageError(text("cannot read ", path_.string(), " at byte ", offset, ": the file ends there, but it held ", bytes_,
                              " bytes when it was opened; do not change it while it is in use"));
    bytes_read_.fetch_add(got, std::memory_order_relaxed);
    next += got;
    offset += got;
    bytes -= got;
  }
}

uint64_t InputFile::hash(int64_t offset, int64_t bytes) const {
  constexpr int64_t chunk = int64_t{1} << 20;
  std::vector<char> buffer(static_cast<size_t>(std::clamp<int64_t>(bytes, 1, chunk)));
  StreamingHash hash;
  while (bytes > 0) {
    const int64_t count = std::min(bytes, chunk);
    read(offset, buffer.data(), count);
    hash.update(buffer.data(), count);
    offset += count;
    bytes -= count;
  }
  return hash.digest();
}

}  // namespace dmuon
