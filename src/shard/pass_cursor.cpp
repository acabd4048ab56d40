#include "shard/pass_cursor.h"

#include "dmuon/core/text.h"

namespace dmuon {

PassCursor::PassCursor(ShardJob& job, const UseOrder& order, Publisher& publisher, Reducer& reducer)
    : job_(job), order_(order), publisher_(publisher), reducer_(reducer), open_positions_(static_cast<size_t>(job.units())) {}

void PassCursor::begin(bool with_backward) {
  running_ = true;
  next_ = open_ = 0;
  end_ = with_backward ? order_.uses() : order_.forward_uses;
  passed_.clear();
  for (auto& positions : open_positions_) positions.clear();
  publisher_.begin_pass(with_backward);
}

void PassCursor::end() {
  if (!running_) return;
  pass_over_until(end_);
  publisher_.end_pass();
  running_ = false;
}

int PassCursor::find(int unit, int from, int to) const {
  for (int p = from; p < to; ++p)
    if (order_.units[static_cast<size_t>(p)] == unit) return p;
  return -1;
}

int PassCursor::find_forward(int unit) const { return running_ ? find(unit, next_, std::min(end_, order_.forward_uses)) : -1; }

// A use that is passed over ends where it would have ended, so that collectives start in one order on all ranks even when
// each of them is waited for at once.
void PassCursor::pass_over_until(int position) {
  for (; next_ < position; ++next_) {
    leave_passed(next_);
    publisher_.pass_over(next_);
    if (next_ >= order_.forward_uses) passed_.push_back(next_);
  }
  leave_passed(position);
}

void PassCursor::leave_passed(int position) {
  while (!passed_.empty() && order_.left[static_cast<size_t>(passed_.back())] <= position) {
    reducer_.pass_over(order_.units[static_cast<size_t>(passed_.back())]);
    passed_.pop_back();
  }
}

void PassCursor::enter(int unit, int position) {
  pass_over_until(position);
  publisher_.enter(position);
  open_positions_[static_cast<size_t>(unit)].push_back(position);
  ++open_;
  ++next_;
}

void PassCursor::enter_forward(int unit) {
  const int position = find_forward(unit);
  if (position < 0)
    throw ConfigError(text("the model enters unit ", job_.unit_name(unit), " in another order than Model::forward_order() declares"));
  enter(unit, position);
}

void PassCursor::enter_backward(int unit) {
  const int position = find(unit, std::max(next_, order_.forward_uses), end_);
  if (position < 0)
    throw ConfigError(
        text("the backward pass enters unit ", job_.unit_name(unit), " in another order than Model::backward_order() declares"));
  enter(unit, position);
}

void PassCursor::leave(int unit) {
  auto& positions = open_positions_[static_cast<size_t>(unit)];
  if (positions.empty()) return;  // a pass that ended while scopes were unwound
  const int position = positions.back();
  positions.pop_back();
  --open_;
  publisher_.leave(position);
}

}  // namespace dmuon
