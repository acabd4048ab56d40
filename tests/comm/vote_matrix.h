// What every transport of a vote must do, on any group: threads of one process and the ranks of mpirun call the same
// functions. Expected bits are counted one by one from a formula that every rank knows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dmuon/backend/backend.h"
#include "dmuon/comm/vote.h"

namespace dmuon::testing {

struct VoteMatrix {
  Communicator& group;
  Backend& backend;
  Stream& stream;
  std::function<void(bool ok, const std::string& what)> check;  // called only on the thread of the rank
  std::vector<int64_t> sizes = {0, 1, 2, 7, 8, 31, 32, 33, 63, 64, 65};
  int64_t large = 4097;

  // All transports that the group can use give the majority, for unanimous, random, tied and nearly unanimous votes.
  void results();
  // Fewer bits than the last word holds, as the pieces of tensors have.
  void odd_bits();
  // Bytes sent are those of vote_cost.h.
  void bytes();
  // The link's cost is equal on all ranks and `automatic` chooses with it.
  void choice();
  void refusals();
  void everything();

 private:
  std::vector<VoteTransportKind> kinds() const;
  int nodes() const;
};

}  // namespace dmuon::testing
