// The transports of votes over the world of the launcher: mpirun's ranks, or this process alone.
#include "comm/vote_matrix.h"
#include "dmuon/comm/world.h"
#include "dmuon/core/text.h"
#include "support/mpi_checks.h"

using namespace dmuon;
using namespace dmuon::testing;

int main() {
  World world = World::start({.deadline_seconds = 60});
  MpiChecks checks(world.communicator());
  const auto check = [&](bool ok, const std::string& what) { checks.check(ok, what); };
  const auto backend = make_cpu_backend();
  const auto worker = backend->make_communication_stream("votes");

  // Many ranks share few processors: measured links and other layouts are those of fewer, and of test_vote_threads.
  const bool few = world.size() <= 4;
  checks.section("world", [&] {
    VoteMatrix matrix{world.communicator(), *backend, *worker, check};
    if (!few) matrix.sizes = {0, 1, 7, 8, 65};
    matrix.results();
    matrix.odd_bits();
    matrix.bytes();
    matrix.refusals();
    if (few) matrix.choice();
  });
  checks.section("virtual nodes", [&] {
    for (const int nodes : {2, world.size()}) {
      if (world.size() % nodes != 0 || world.size() < nodes || (nodes > 2 && !few)) continue;
      const auto divided = world.communicator().divide_into_nodes(nodes, "virtual nodes");
      VoteMatrix matrix{*divided, *backend, *worker, check, {0, 7, 65}, 257};
      matrix.results();
      if (few) matrix.bytes();
      if (few && nodes < world.size()) matrix.choice();
    }
  });
  if (few)
    checks.section("guarded storage", [&] {
      const auto guarded = make_cpu_backend({.mode = HostMode::guarded});
      const auto stream = make_inline_stream();
      VoteMatrix{world.communicator(), *guarded, *stream, check, {65}, 300}.results();
    });
  const int result = checks.finish();
  world.finish();
  return result;
}
