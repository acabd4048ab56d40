// How a polling thread waits: a little spinning, then leaving the core to others for longer and longer, so that a
// communication thread takes nothing measurable from the compute threads beside it.
#pragma once

#include <chrono>
#include <thread>

#include <sched.h>

namespace dmuon {

class Backoff {
 public:
  void reset() { round_ = 0; }
  // While data flows (`transferring`) pauses stay short: the transport copies only when it is polled.
  void pause(bool transferring) {
    ++round_;
    if (round_ <= spin_rounds) return;
    if (round_ <= spin_rounds + yield_rounds) {
      sched_yield();
      return;
    }
    const int longest = transferring ? 50 : 200;
    const int slept = round_ - spin_rounds - yield_rounds;
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(longest, 20 + slept)));
  }

 private:
  static constexpr int spin_rounds = 20;
  static constexpr int yield_rounds = 200;
  int round_ = 0;
};

}  // namespace dmuon
