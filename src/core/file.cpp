#include "dmuon/core/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

Path parent_of(const Path& path) { return path.has_parent_path() ? path.parent_path() : Path("."); }

// `wanted`: the bytes that were to be written, named when the disk is full; negative if unknown.
[[noreturn]] void fail(std::string_view action, const Path& path, int error, int64_t wanted = -1) {
  std::string message = text("cannot ", action, " ", path.string(), ": ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) {
    struct statvfs info {};
    if (wanted >= 0) message += text("; ", format_bytes(wanted), " more wanted");
    if (statvfs(parent_of(path).c_str(), &info) == 0)
      message +=
          text("; ", format_bytes(static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize)), " free on the file system");
    message += error == EFBIG ? "; raise the file size limit (ulimit -f)" : "; free space there or choose another directory";
  }
  throw StorageError(message);
}

int open_or_fail(const Path& path, int flags, std::string_view action) {
  const int descriptor = open(path.c_str(), flags | O_CLOEXEC, 0644);
  if (descriptor < 0) fail(action, path, errno);
  return descriptor;
}

}  // namespace

std::string read_file(const Path& path, int64_t limit) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const int descriptor = open_or_fail(path, O_RDONLY | O_NONBLOCK, "read");
  struct stat info {};
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(descriptor);
    throw StorageError(text("cannot read ", path.string(), ": not a regular file"));
  }
  if (info.st_size > limit) {
    close(descriptor);
    throw StorageError(text(path.string(), " holds ", info.st_size, " bytes, more than the ", limit, " expected of such a file"));
  }
  std::string content(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t got = read(descriptor, content.data() + done, content.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      const int error = got < 0 ? errno : EIO;
      close(descriptor);
      fail("read", path, error);
    }
    done += static_cast<size_t>(got);
  }
  close(descriptor);
  return content;
}

void write_file_atomically(const Path& path, std::string_view content) {
  const Path temporary = path.string() + text(".tmp-", getpid());
  try {
    OutputFile file(temporary);
    file.write(content);
    file.close();
  } catch (...) {
    unlink(temporary.c_str());
    throw;
  }
  if (rename(temporary.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(temporary.c_str());
    fail("replace", path, error);
  }
  fsync_directory(parent_of(path));
}

void fsync_directory(const Path& directory) {
  const int descriptor = open_or_fail(directory, O_RDONLY | O_DIRECTORY, "open directory");
  const int result = fsync(descriptor);
  const int error = errno;
  close(descriptor);
  if (result != 0 && error != EINVAL) fail("sync directory", directory, error);  // EINVAL: a file system without it
}

void rename_durably(const Path& from, const Path& to) {
  const std::string action = text("rename ", from.string(), " to");
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) != 0) {
    if (errno != EINVAL && errno != ENOSYS) fail(action, to, errno);
    // A file system without that flag: look first. Callers hold the directory's lock, so nobody creates `to` in between.
    struct stat info {};
    if (lstat(to.c_str(), &info) == 0) fail(action, to, EEXIST);
    if (rename(from.c_str(), to.c_str()) != 0) fail(action, to, errno);
  }
  fsync_directory(parent_of(to));
}

int64_t free_bytes(const Path& directory) {
  struct statvfs info {};
  if (statvfs(directory.c_str(), &info) != 0) fail("read the free space of", directory, errno);
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

OutputFile::OutputFile(const Path& path) : path_(path), descriptor_(open_or_fail(path, O_WRONLY | O_CREAT | O_TRUNC, "create")) {}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void OutputFile::write(const void* data, int64_t bytes) {
  const char* next = static_cast<const char*>(data);
  int64_t left = bytes;
  while (left > 0) {
    const ssize_t put = ::write(descriptor_, next, static_cast<size_t>(std::min<int64_t>(left, int64_t{1} << 30)));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail("write", path_, put < 0 ? errno : EIO, left);
    next += put;
    left -= put;
    written_ += put;
  }
}

void OutputFile::overwrite(int64_t offset, const void* data, int64_t bytes) {
  if (offset < 0 || bytes > written_ - offset)
    throw StorageError(text("cannot overwrite bytes of ", path_.string(), " that were not written"));
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t put = ::pwrite(descriptor_, next, static_cast<size_t>(bytes), offset);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) fail("write", path_, put < 0 ? errno : EIO);
    next += put;
    offset += put;
    bytes -= put;
  }
}

void OutputFile::close() {
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (descriptor < 0) return;
  if (fdatasync(descriptor) != 0 && errno != EINVAL) {
    const int error = errno;
    ::close(descriptor);
    fail("sync", path_, error);
  }
  if (::close(descriptor) != 0) fail("close", path_, errno);
}

MappedFile::MappedFile(const Path& path) : path_(path) {
  const int descriptor = open_or_fail(path, O_RDONLY | O_NONBLOCK, "read");
  struct stat info {};
  if (fstat(descriptor, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(descriptor);
    throw DataError(text(path.string(), " is not a regular file"));
  }
  size_ = info.st_size;
  if (size_ > 0) {
    void* data = mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_SHARED, descriptor, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      ::close(descriptor);
      fail("map", path, error);
    }
    data_ = static_cast<const std::byte*>(data);
  }
  ::close(descriptor);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), static_cast<size_t>(size_));
}

}  // namespace dmuon
