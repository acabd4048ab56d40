#include "train/stop_request.h"

#include "train/signals.h"

namespace dmuon {

bool StopRequest::exchange(bool& ended) {
  const double mine[] = {stop_signal() != 0 ? 1.0 : 0.0, ended ? 1.0 : 0.0};
  const std::vector<double> all = world_.all_reduce(mine, ReduceOperation::maximum);
  note(all[0] > 0.0);
  ended = all[1] > 0.0;
  return requested_;
}

bool StopRequest::ask() {
  bool ended = false;
  return exchange(ended);
}

bool StopRequest::ask_listeners(bool ended) { return exchange(ended); }

void StopRequest::listen() {
  for (bool ended = false; !ended;) {
    bool told = false;
    exchange(told);
    ended = told;
  }
}

}  // namespace dmuon
