// The collective matrix over the world of the launcher: mpirun's ranks, or this process alone.
#include <cstdio>

#include "comm/collective_matrix.h"
#include "comm/shared/shared_group.h"
#include "dmuon/comm/world.h"
#include "dmuon/core/text.h"
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
    // Ranks fill one host after the other: this machine, or the nodes of a virtual cluster.
    check(world.local_ranks() * static_cast<int>(world.hosts().size()) == world.size(), "hosts have equally many ranks");
    check(world.local_rank() == world.rank() % world.local_ranks(), "local rank");
    const Communicator& all = world.communicator();
    check(all.node(world.rank()) == world.rank() / world.local_ranks(), "node");
    check(all.host(world.rank()) == world.hosts()[static_cast<size_t>(all.node(world.rank()))], "host");
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
  checks.section("memory of the group", [&] {
    const auto backend = make_cpu_backend();
    const auto stream = make_inline_stream();
    const MemoryStatistics before = backend->allocator().statistics();
    {
      const Tensor buffer = world.communicator().allocate(*backend, {7, 100}, DType::float32, MemoryCategory::gradients, "gradients");
      check(buffer.shape() == Shape{7, 100} && buffer.bytes() == 2800, "shape of group memory");
      check(backend->allocator().statistics()[MemoryCategory::gradients].current == before[MemoryCategory::gradients].current + 2800,
            "group memory is counted with the backend's");
    }
    check(backend->allocator().statistics().total.current == before.total.current, "group memory is released");
    Matrix matrix{world.communicator(), *stream, *allocator, check, {0, 1, 4099, 70001}, 700003, backend.get()};
    matrix.broadcast();
    matrix.all_reduce();
    matrix.all_gather_v();
    matrix.reduce_scatter_v();
    // Memory of the whole group in a group split off, and beside private memory.
    const auto half = world.communicator().split(world.rank() % 2, world.rank(), "halves");
    const Tensor shared = world.communicator().allocate(*backend, {100000}, DType::float32, MemoryCategory::gradients, "shared");
    const Tensor plain = backend->allocate({100000}, DType::float32, MemoryCategory::gradients, "private");
    for (const Tensor& tensor : {shared, half->rank() == 0 ? shared : plain}) {
      std::fill_n(tensor.data<float>(), 100000, 1.0f + static_cast<float>(world.rank() / 2));
      half->all_reduce(*stream, tensor, ReduceOperation::sum);
      const float expected = static_cast<float>(half->size() * (half->size() + 1) / 2);
      check(tensor.data<float>()[0] == expected && tensor.data<float>()[99999] == expected, "group memory in a part of the group");
    }
    // Two nodes: only the ranks of one share.
    if (world.size() % 2 == 0) {
      const auto nodes = world.communicator().divide_into_nodes(2, "two nodes");
      Matrix{*nodes, *stream, *allocator, check, {4099}, 70001, backend.get()}.all_reduce();
    }
  });
  checks.section("two groups", [&] { two_groups(world.communicator(), *allocator, check); });
  checks.section("by messages", [&] {
    const auto messages = world.communicator().divide_into_nodes(world.size(), "messages");
    const auto stream = make_inline_stream();
    Matrix{*messages, *stream, *allocator, check, {0, 1, 4099, 70001}}.everything();
    two_groups(*messages, *allocator, check);
  });
  checks.section("memory and bytes", [&] {
    // What is left are the buffers through which the ranks of the world on one host meet, if it has several; a group more, more.
    const auto communication = [&] { return world.memory()[MemoryCategory::communication]; };
    int neighbours = 0;
    for (int rank = 0; rank < world.size(); ++rank)
      neighbours += world.communicator().node(rank) == world.communicator().node(world.rank());
    const int64_t meeting = neighbours > 1 ? SharedGroup::bytes_per_rank(neighbours) : 0;
    check(communication().current == meeting, text("staging is released: ", communication().current, " bytes, expected ", meeting));
    {
      const auto group = world.communicator().split(0, world.rank(), "one more");
      // Between hosts a group meets nowhere until it is divided by hosts.
      const int64_t more = neighbours == world.size() ? meeting : 0;
      check(communication().current == meeting + more, text("buffers of a group are counted: ", communication().current));
    }
    check(communication().current == meeting, "buffers of a group are released");
    const int64_t most = 5 * SharedGroup::bytes_per_rank(world.size()) + (int64_t{8} << 20);
    check(communication().peak <= most, text("staging is bounded: ", communication().peak, " bytes, at most ", most));
    check((world.communicator().bytes_sent() > 0) == (world.size() > 1), "bytes sent are counted");
  });
  const int result = checks.finish();
  world.finish();
  return result;
}
