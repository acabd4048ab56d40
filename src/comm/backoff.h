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
  // `spins`: polls before the core is offered to others.
  explicit Backoff(int spins = 20) : spin_rounds_(spins) {}
  void reset() { round_ = 0; }
  void pause() {
    ++round_;
    if (round_ <= spin_rounds_) return;
    if (round_ <= spin_rounds_ + yield_rounds) {
      sched_yield();
      return;
    }
    // Short at first, because a transport may copy only when it is polled; long once the peers are evidently busy.
    const int slept = round_ - spin_rounds_ - yield_rounds;
    const int longest = slept < 100 ? 50 : slept < 1000 ? 200 : 500;
    std::this_thread::sleep_for(std::chrono::microseconds(std::min(longest, 20 + slept)));
  }

 private:
  static constexpr int yield_rounds = 200;
  int spin_rounds_;
  int round_ = 0;
};

}  // namespace dmuon
