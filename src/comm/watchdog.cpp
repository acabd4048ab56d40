#include "comm/watchdog.h"

#include <unistd.h>

#include <cstdio>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

Watchdog::Watchdog(WatchdogOptions options) : options_(std::move(options)) {
  if (!options_.expired)
    options_.expired = [](const std::string& line) {
      std::fprintf(stderr, "%s\n", line.c_str());
      std::fflush(nullptr);
      _exit(static_cast<int>(ExitCode::communication));
    };
  thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Watchdog::enter(const std::string& phase, double limit_seconds) {
  std::lock_guard lock(mutex_);
  phase_ = phase;
  limit_ = Deadline(limit_seconds, 4 * options_.poll_seconds);
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    wake_.wait_for(lock, std::chrono::duration<double>(options_.poll_seconds));
    if (stop_ || !limit_.passed()) continue;
    std::string line = text("dmuon: rank ", options_.rank, " (", options_.host, "): phase \"", phase_, "\" has lasted ",
                            format_duration(limit_.waited()), ", limit ", format_duration(limit_.seconds()));
    limit_ = Deadline(0);  // reported once
    lock.unlock();
    if (options_.operation) line += text("; running: ", options_.operation());
    options_.expired(line + ". Remedy: look for a stopped or overloaded process or host; raise the limit if it is only slow");
    lock.lock();
  }
}

}  // namespace dmuon
