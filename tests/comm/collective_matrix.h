// The behaviour every communicator must have, over dtypes, sizes, cuts and options. Runs on any transport: the MPI
// program and the ranks-as-threads program call the same functions. Expectations are computed serially, in rank order,
// from a formula that every rank knows.
#pragma once

#include <functional>

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
  bool thorough = true;  // also buffers of several pieces

  void barrier();
  void broadcast();
  void all_reduce();
  void all_gather_v();
  void reduce_scatter_v();
  void all_to_all_v();
  void control();
  void split();
  void bad_arguments();
  void everything();
};

// Two groups used at once from two worker streams, in another order of completion on every rank.
void two_groups(Communicator& world, Allocator& allocator, const Check& check);

}  // namespace dmuon::testing
