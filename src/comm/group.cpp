#include "comm/group.h"

#include <map>

#include "dmuon/core/text.h"

namespace dmuon {

Group::Group(std::string name, std::shared_ptr<PointToPoint> transport, std::vector<GroupMember> members, GroupServices services,
             double deadline_seconds)
    : name_(std::move(name)), services_(std::move(services)), deadline_seconds_(deadline_seconds), transport_(std::move(transport)) {
  set_members(std::move(members));
}

void Group::set_members(std::vector<GroupMember> members) {
  members_ = std::move(members);
  std::map<int, int> numbers;
  for (GroupMember& member : members_) member.node = numbers.try_emplace(member.node, static_cast<int>(numbers.size())).first->second;
}

std::string Group::who(int rank) const { return text("rank ", world_rank(rank), " (", host(rank), ")"); }

void Group::check() const {
  std::lock_guard lock(mutex_);
  if (!failure_.empty()) throw CommunicationError(failure_);
}

void Group::fail(const std::string& message) {
  std::string failure;
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    first = failure_.empty();
    if (first) failure_ = message;
    failure = failure_;
  }
  if (first) transport_->send_notice(message);
  throw CommunicationError(failure);
}

void Group::keep(std::shared_ptr<void> unfinished) {
  std::lock_guard lock(mutex_);
  unfinished_.push_back(std::move(unfinished));
}

}  // namespace dmuon
