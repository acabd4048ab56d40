#include "comm/group.h"

#include <map>

#include "dmuon/core/text.h"

namespace dmuon {

Group::Group(std::string name, std::shared_ptr<PointToPoint> transport, std::vector<std::string> hosts, std::vector<int> nodes,
             GroupServices services, double deadline_seconds)
    : name_(std::move(name)), services_(std::move(services)), deadline_seconds_(deadline_seconds), transport_(std::move(transport)) {
  set_hosts(std::move(hosts), nodes);
}

void Group::set_hosts(std::vector<std::string> hosts, const std::vector<int>& nodes) {
  hosts_ = std::move(hosts);
  nodes_.clear();
  std::map<int, int> numbers;
  for (int node : nodes) nodes_.push_back(numbers.try_emplace(node, static_cast<int>(numbers.size())).first->second);
}

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
