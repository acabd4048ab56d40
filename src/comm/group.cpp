#include "comm/group.h"

#include "dmuon/core/text.h"

namespace dmuon {

Group::Group(std::string name, std::shared_ptr<PointToPoint> transport, std::vector<std::string> hosts, GroupServices services,
             double deadline_seconds)
    : name_(std::move(name)),
      hosts_(std::move(hosts)),
      services_(std::move(services)),
      deadline_seconds_(deadline_seconds),
      transport_(std::move(transport)) {}

std::string Group::who(int rank) const { return text("rank ", rank, " (", host(rank), ")"); }

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
