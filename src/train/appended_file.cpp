#include "train/appended_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

AppendedFile::AppendedFile(const Path& path)
    : path_(path), descriptor_(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644)) {
  if (descriptor_ < 0) throw StorageError(text("cannot append to ", path.string(), ": ", std::strerror(errno)));
}

AppendedFile::~AppendedFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void AppendedFile::append(std::string_view content) {
  const ssize_t put = ::write(descriptor_, content.data(), content.size());
  if (put != static_cast<ssize_t>(content.size()))
    throw StorageError(text("cannot append to ", path_.string(), ": ", put < 0 ? std::strerror(errno) : "the disk is full"));
}

}  // namespace dmuon
