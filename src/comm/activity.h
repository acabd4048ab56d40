// Which collectives are running in this process, for messages of the watchdog. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "comm/operation.h"

namespace dmuon {

class Activity {
 public:
  // From construction to destruction the operation counts as running.
  class Scope {
   public:
    // `group` must outlive the scope.
    Scope(Activity& activity, const Operation& operation, const std::string& group);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Activity& activity_;
    int64_t id_;
  };

  // "barrier #4 of group "world" for 3.2s, …"; "no collective" when none runs.
  std::string describe() const;

 private:
  struct Entry {
    Operation operation;  // described only when asked
    const std::string* group;
    std::chrono::steady_clock::time_point start;
  };
  mutable std::mutex mutex_;
  int64_t next_ = 0;
  std::map<int64_t, Entry> running_;
};

}  // namespace dmuon
