#include "comm/shared/connect.h"

#include "comm/collectives.h"
#include "comm/shared/shared_group.h"
#include "dmuon/core/external_memory.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"

namespace dmuon {

void connect_shared_memory(Group& group) {
  if (group.size() == 1 || !group.services().shared_memory) return;
  for (int r = 1; r < group.size(); ++r)
    if (group.node(r) != group.node(0)) return;
  const SharedSegmentRequest request{.rank = group.rank(),
                                     .ranks = group.size(),
                                     .bytes_per_rank = SharedGroup::bytes_per_rank(group.size()),
                                     .reserve = true,
                                     .one_process = group.transport().one_process()};
  const SharedSegmentResult made = share_segment(request, [&](const std::string& mine) {
    const Operation operation{.kind = OperationKind::split, .sequence = group.next_sequence()};
    return run_all_gather_text(*std::make_shared<Exchange>(group, operation, std::vector<Tensor>{}), std::make_shared<std::string>(mine));
  });
  if (!made.segment) return warn_without_shared_memory(group, made);
  auto account = count_external_memory(*group.services().staging, request.bytes_per_rank, MemoryCategory::communication);
  group.set_shared(std::make_shared<SharedGroup>(made.segment, group.size(), std::move(account)));
}

void warn_without_shared_memory(Group& group, const SharedSegmentResult& why) {
  if (group.services().shared_memory_warned->exchange(true) || group.rank() != 0) return;
  log_warning(text("ranks on ", group.host(0), " exchange data by messages instead of shared memory, which is slower; ",
                   group.who(why.failed_rank), ": ", why.reason));
}

}  // namespace dmuon
