// A thread that watches phases: what an operation's own deadline cannot see (a hang inside a kernel, a file system, or
// MPI itself). It never calls MPI, and time in which the process was stopped does not count. When a phase exceeds its limit it reports one
// line and ends the process.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/deadline.h"

namespace dmuon {

struct WatchdogOptions {
  int rank = 0;
  std::string host;
  // What is running now, for the line; may be empty. Called from the watchdog's thread.
  std::function<std::string()> operation;
  // Called once, with the line, from the watchdog's thread; the default prints it to stderr and calls _exit with
  // ExitCode::communication, which makes mpirun end the other ranks.
  std::function<void(const std::string& line)> expired;
  double poll_seconds = 0.5;
};

// Thread-safe.
class Watchdog {
 public:
  explicit Watchdog(WatchdogOptions options);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // The process is now in `phase` ("forward", "checkpoint"), which may last `limit_seconds` (0: no limit). Replaces the
  // phase before and restarts its clock.
  void enter(const std::string& phase, double limit_seconds);
  void leave() { enter("idle", 0); }

 private:
  void watch();

  WatchdogOptions options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::string phase_ = "idle";
  Deadline limit_{0};
  std::thread thread_;
};

}  // namespace dmuon
