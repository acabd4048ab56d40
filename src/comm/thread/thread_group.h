// Test double: ranks as threads of one process, with mailboxes instead of a network. It may do everything a legal
// transport may do: finish sends early (buffered) or only when received, and report completion late and out of order.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/point_to_point.h"
#include "dmuon/comm/communicator.h"

namespace dmuon {

struct ThreadGroupOptions {
  uint64_t seed = 0;
  // A message is reported done after up to this many polls although it is; 0: at once.
  int late_polls = 0;
  // Messages up to this size complete at the sender at once, as through the eager path of MPI.
  int64_t buffered_bytes = 4096;
  // Messages of this rank never arrive; -1: none.
  int silent_rank = -1;
  double deadline_seconds = 60;
  int ranks_per_node = 1 << 30;  // consecutive ranks that count as one node
  // Groups whose ranks share a node use shared memory, as ranks that are processes do; else all goes by messages.
  bool shared_memory = false;
};

std::vector<std::shared_ptr<PointToPoint>> make_thread_transports(int ranks, const ThreadGroupOptions& options = {});
// Communicator r is for the thread of rank r; hosts are named "thread0", "thread1", …
std::vector<std::unique_ptr<Communicator>> make_thread_group(int ranks, const ThreadGroupOptions& options = {});

}  // namespace dmuon
