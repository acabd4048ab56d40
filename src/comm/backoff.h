// How a polling thread waits: a little spinning, then leaving the core to others for longer and longer, so that a
// communication thread takes nothing measurable from the compute threads beside it.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace dmuon {

class Backoff {
 public:
  void reset() { round_ = 0; }
  void pause() {
    ++round_;
    if (round_ <= spin_rounds) return;
    if (round_ <= spin_rounds + yield_rounds) {
      sched_yield();
      return;
    }
    // Short at first, because a transport may copy only when it is polled; long once the peers are evidently busy.
    const int slept = round_ - spin_rounds - yield_rounds;
    const int longest = slept < 100 ? 50 : slept < 1000 ? 200 : 500;
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(longest, 20 + slept)));
  }

 private:
  static constexpr int spin_rounds = 20;
  static constexpr int yield_rounds = 200;
  int round_ = 0;
};

}  // namespace dmuon
