#include "comm/nccl/nccl_session.h"

#include "comm/nccl/nccl_group.h"

namespace dmuon::nccl {

void Session::add(const std::shared_ptr<NcclGroup>& group) {
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [](const std::weak_ptr<NcclGroup>& each) { return each.expired(); });
  groups_.push_back(group);
}

// In one group: every abort frees memory, for which it waits for the whole device, where work of the others waits for peers that are
// gone. Grouped, all are told to stop before the first one waits.
void Session::abort_all(NcclGroup& group, const std::string& why) {
  std::vector<std::shared_ptr<NcclGroup>> living;
  {
    const std::lock_guard lock(mutex_);
    for (const std::weak_ptr<NcclGroup>& each : groups_) living.push_back(each.lock());
  }
  std::vector<ncclComm_t> comms;
  for (const std::shared_ptr<NcclGroup>& each : living)
    if (each) comms.push_back(each->give_up_communicator(why));
  comms.push_back(group.give_up_communicator(why));
  std::erase(comms, nullptr);
  if (comms.empty()) return;
  const bool grouped = ncclGroupStart() == ncclSuccess;
  for (const ncclComm_t comm : comms) ncclCommAbort(comm);
  if (grouped) ncclGroupEnd();
}

}  // namespace dmuon::nccl
