// A file that only grows, one whole write at a time.
#pragma once

#include <string_view>

#include "dmuon/core/file.h"

namespace dmuon {

class AppendedFile {
 public:
  // Creates the file where there is none. StorageError names the path, as of append().
  explicit AppendedFile(const Path& path);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;
  void append(std::string_view content);

 private:
  Path path_;
  int descriptor_ = -1;
};

}  // namespace dmuon
