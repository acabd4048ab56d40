// When a frame that enters a switch leaves it: every port has a rate in each direction and all paths have one delay. Pure
// arithmetic on nanoseconds that the caller reads from a clock, so that it can be tested without one.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace dmuon::virtual_switch {

class LinkModel {
 public:
  // Rates are unlimited, the delay is zero. A frame that would wait longer than `longest_wait` (nanoseconds) for its
  // receiver's link is dropped, as a switch with a buffer of that many bytes drops it.
  LinkModel(int ports, int64_t longest_wait);

  // Bits per second of both directions of a port; 0: unlimited. Holds for frames that are sent later.
  void set_rate(int port, int64_t bits_per_second);
  // One way between any two ports, from the last bit sent to the last bit received at equal rates.
  void set_delay(int64_t nanoseconds) { delay_ = nanoseconds; }

  // A node starts to send a frame of `bytes` at `ready`, or once the frame before it has left. Returns when its last bit has.
  int64_t send(int port, int64_t bytes, int64_t ready);
  // The frame that `send` returned `sent` for reaches a receiver; frames are handed over in the order of `sent`. Returns when its last bit
  // has arrived there, never before an earlier frame's; nothing if it is dropped. Bits flow through: equal rates cost no second
  // serialisation.
  std::optional<int64_t> receive(int from, int to, int64_t bytes, int64_t sent);

 private:
  struct Port {
    int64_t bits_per_second = 0;
    int64_t sent = 0;      // when the last frame has left the node
    int64_t received = 0;  // when the last frame has passed the link to the node
    int64_t arrived = 0;   // and, the delay added, when it is delivered
  };
  static int64_t serialisation(const Port& port, int64_t bytes);

  std::vector<Port> ports_;
  int64_t longest_wait_;
  int64_t delay_ = 0;
};

}  // namespace dmuon::virtual_switch
