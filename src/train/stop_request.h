// A signal to stop as all ranks of a job see it: one rank's is everybody's, at the same place.
#pragma once

#include "dmuon/comm/communicator.h"

namespace dmuon {

class StopRequest {
 public:
  explicit StopRequest(Communicator& world) : world_(world) {}

  // As the ranks have agreed so far; once true it stays so.
  bool requested() const { return requested_; }
  // What another collective has agreed on, such as the sums of a step.
  void note(bool requested) { requested_ = requested_ || requested; }
  // Collective: whether any rank has a signal by now.
  bool ask();

  // One rank works alone while the others wait and listen: it asks as often as it likes and once more with `ended`; the others listen
  // until then. So a signal of any of them is heard.
  bool ask_listeners(bool ended);
  void listen();

 private:
  bool exchange(bool& ended);

  Communicator& world_;
  bool requested_ = false;
};

}  // namespace dmuon
