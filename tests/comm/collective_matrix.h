// The behaviour every communicator must have, over dtypes, sizes, cuts and options. Runs on any transport: the MPI
// program and the ranks-as-threads program call the same functions. Expectations are computed serially, in rank order,
// from a formula that every rank knows.
#pragma once

#include <functional>

#include "dmuon/backend/backend.h"
#include "dmuon/comm/communicator.h"
#include "dmuon/core/memory.h"

namespace dmuon::testing {

// Told of every check; called only on the thread of the rank.
using Check = std::function<void(bool ok, const std::string& what)>;

struct Matrix {
  Communicator& group;
  Stream& stream;
  Allocator& allocator;
  Check check;
  std::vector<int64_t> sizes = {0, 1, 3, 4099, 70001};
  int64_t large = 700003;  // several pieces; only for float32
  // If given, buffers come from group.allocate: memory that ranks of one host may reach in place.
  Backend* backend = nullptr;
  // If given, all tensors are its, and `stream` is one of its streams; the host looks at them through copies.
  Backend* device = nullptr;

  void barrier();
  void broadcast();
  void all_reduce();
  void all_gather_v();
  void reduce_scatter_v();
  void all_to_all_v();
  void control();
  void split();
  void nodes();
  void null_transport();
  void bad_arguments();
  void everything();
};

// Two groups used at once from two worker streams, in another order of completion on every rank.
void two_groups(Communicator& world, Allocator& allocator, const Check& check);

}  // namespace dmuon::testing
