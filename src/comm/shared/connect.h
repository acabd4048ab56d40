// Gives a new group its shared memory.
#pragma once

#include "comm/group.h"
#include "comm/shared/shared_segment.h"

namespace dmuon {

// Collective, over messages, before any other operation of the group. Does nothing where the ranks are on several nodes;
// where shared memory cannot be had, warns and leaves the group to messages.
void connect_shared_memory(Group& group);
// Says once per process, on the group's first rank, that the ranks of a host go on with messages, and which rank failed why.
void warn_without_shared_memory(Group& group, const SharedSegmentResult& why);

}  // namespace dmuon
