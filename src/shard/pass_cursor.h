// Where a pass over the model is: turns the events of a model into positions of the static schedule, and passes over those
// that this rank does not run, so that it enters every collective.
#pragma once

#include <functional>
#include <vector>

#include "shard/publisher.h"
#include "shard/reducer.h"

namespace dmuon {

class PassCursor {
 public:
  PassCursor(ShardJob& job, const UseOrder& order, Publisher& publisher, Reducer& reducer);

  void begin(bool with_backward);
  // Passes over what has not been entered. Does nothing outside a pass.
  void end();
  bool running() const { return running_; }
  bool training() const { return running_ && end_ == order_.uses(); }
  // Every scope is closed and every position entered.
  bool done() const { return next_ == end_ && open_ == 0; }

  // ConfigError when the model enters units in another order than it declares.
  void enter_forward(int unit);
  void enter_backward(int unit);
  void leave(int unit);
  // Position of the next use of the unit in the running pass's forward half, -1: none.
  int find_forward(int unit) const;

 private:
  int find(int unit, int from, int to) const;
  void pass_over_until(int position);
  void leave_passed(int position);
  void enter(int unit, int position);

  ShardJob& job_;
  const UseOrder& order_;
  Publisher& publisher_;
  Reducer& reducer_;
  bool running_ = false;
  int next_ = 0, end_ = 0;
  int open_ = 0;
  std::vector<std::vector<int>> open_positions_;  // per unit
  std::vector<int> passed_;                       // backward uses passed over that have not ended yet, the innermost last
};

}  // namespace dmuon
