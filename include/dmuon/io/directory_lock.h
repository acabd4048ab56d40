// One run at a time in a checkpoint directory: `<directory>/.lock` names process, host and run.
#pragma once

#include <string>

#include "dmuon/core/file.h"

namespace dmuon {

class DirectoryLock {
 public:
  // Creates the directory if need be. The lock of a dead process on this host is taken over with a log line. ConfigError
  // "another run uses this directory" naming process, host, run and remedy if its holder lives, or runs on another host,
  // where nobody can tell. A holder on this host is given `patience_seconds` to end.
  DirectoryLock(const Path& directory, std::string run_id, double patience_seconds = 0);
  ~DirectoryLock();  // removes the file
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  const Path& directory() const { return directory_; }

 private:
  Path directory_;
  Path path_;
  int descriptor_ = -1;  // holds flock, which the kernel releases when the process dies
};

}  // namespace dmuon
