// The collective matrix over the world of the launcher: mpirun's ranks, or this process alone.
#include <cstdio>

#include "comm/collective_matrix.h"
#include "dmuon/comm/world.h"
#include "support/mpi_checks.h"

using namespace dmuon;
using namespace dmuon::testing;

int main() {
  World world = World::start({.deadline_seconds = 60});
  MpiChecks checks(world.communicator());
  const auto check = [&](bool ok, const std::string& what) { checks.check(ok, what); };
  const auto allocator = make_host_allocator({.poison = true});
  const auto guarded = make_host_allocator({.guarded = true});

  checks.section("world", [&] {
    check(world.local_ranks() == world.size(), "all ranks of this test share a host");
    check(world.local_rank() == world.rank(), "local rank");
    check(world.hosts().size() == 1 && world.hosts()[0] == world.communicator().host(world.rank()), "hosts");
    check(world.running_operations() == "no collective", world.running_operations());
  });
  checks.section("inline stream", [&] {
    const auto stream = make_inline_stream();
    Matrix{world.communicator(), *stream, *allocator, check}.everything();
  });
  checks.section("worker stream, guarded storage", [&] {
    const auto stream = make_worker_stream("comm");
    Matrix{world.communicator(), *stream, *guarded, check, {0, 1, 4099}, 70001}.everything();
    stream->synchronize();
  });
  checks.section("two groups", [&] { two_groups(world.communicator(), *allocator, check); });
  checks.section("memory and bytes", [&] {
    check(world.memory()[MemoryCategory::communication].current == 0, "staging is released");
    check(world.memory()[MemoryCategory::communication].peak <= int64_t{8} << 20, "staging is bounded");
    check((world.communicator().bytes_sent() > 0) == (world.size() > 1), "bytes sent are counted");
  });
  const int result = checks.finish();
  world.finish();
  return result;
}
