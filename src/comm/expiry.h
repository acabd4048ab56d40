// How a collective gives up, whatever its transport.
#pragma once

#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/operation.h"

namespace dmuon {

// Throws CommunicationError naming both calls unless `theirs`, the greeting of rank `peer`, is of the same call.
void check_same_call(const Group& group, const Operation& mine, const Greeting& theirs, int peer);
// Throws CommunicationError with the text of another rank of the group that gave up, if one did.
void throw_if_another_gave_up(Group& group);
// The deadline has passed: tells the others, listens for a moment who is still alive, and throws CommunicationError
// naming what is waited for (`waiting`, one text for every rank) and who gave no sign of life.
[[noreturn]] void expire(Group& group, const Operation& operation, double deadline_seconds, const std::vector<std::string>& waiting);

}  // namespace dmuon
