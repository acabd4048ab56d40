// The collective and vote matrices over NCCL between the ranks of mpirun, one device each.
#include <algorithm>

#include "comm/collective_matrix.h"
#include "comm/vote_matrix.h"
#include "dmuon/comm/device_communicator.h"
#include "dmuon/comm/world.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "support/mpi_checks.h"

using namespace dmuon;
using namespace dmuon::testing;

int main() {
  World world = World::start({.deadline_seconds = 60});
  MpiChecks checks(world.communicator());
  const auto check = [&](bool ok, const std::string& what) { checks.check(ok, what); };
  const auto backend = open_backend_plugin(DMUON_CUDA_ON_HOST, {.device = world.local_rank()});
  const auto devices = make_device_communicator(*backend, world.communicator());
  const auto stream = backend->make_communication_stream("collectives");

  checks.section("collectives", [&] {
    Matrix matrix{*devices, *stream, backend->allocator(), check, {0, 1, 3, 1009}, 20011, nullptr, backend.get()};
    if (world.size() == 1) {
      matrix.broadcast();
      matrix.all_gather_v();
      matrix.all_to_all_v();
      matrix.control();
    } else {
      matrix.everything();
    }
    stream->synchronize();
  });
  checks.section("reductions in several pieces", [&] {
    // Beyond what is staged at once, and with most of it at one rank.
    const int64_t elements = (int64_t{9} << 20) + 17;
    std::vector<int64_t> cuts(static_cast<size_t>(world.size()) + 1, elements);
    for (int r = 0; r < world.size(); ++r) cuts[static_cast<size_t>(r)] = 3 * r;
    const Tensor buffer = backend->allocate({elements}, DType::float32, MemoryCategory::gradients, "terms");
    std::vector<float> host(static_cast<size_t>(elements));
    for (size_t i = 0; i < host.size(); ++i) host[i] = static_cast<float>((i * 7 + static_cast<size_t>(world.rank()) * 13) % 1024);
    backend->copy_from_host(backend->compute_stream(), host.data(), buffer);
    backend->compute_stream().synchronize();
    const auto rank = static_cast<size_t>(world.rank());
    const Tensor own = buffer.flat(cuts[rank], cuts[rank + 1] - cuts[rank]);
    devices->reduce_scatter_v(*stream, buffer, cuts, own, false);
    stream->synchronize();
    std::vector<float> found(static_cast<size_t>(own.elements()));
    backend->copy_to_host(backend->compute_stream(), own, found.data());
    int64_t wrong = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      float sum = 0;
      for (size_t r = 0; r < static_cast<size_t>(world.size()); ++r)
        sum += static_cast<float>(((i + static_cast<size_t>(cuts[rank])) * 7 + r * 13) % 1024);
      wrong += found[i] != sum;
    }
    check(wrong == 0, text(wrong, " sums differ"));
  });
  checks.section("votes", [&] {
    VoteMatrix matrix{*devices, *backend, *stream, check, {0, 1, 7, 33, 65}, 257};
    matrix.results();
    matrix.odd_bits();
    matrix.bytes();
    matrix.refusals();
    matrix.choice();
    if (world.size() == 4) {
      const auto divided = devices->divide_into_nodes(2, "virtual nodes");
      VoteMatrix{*divided, *backend, *stream, check, {0, 7, 65}, 257}.results();
    }
    stream->synchronize();
  });
  checks.section("device memory and messages", [&] {
    if (world.size() == 1) return;
    const Tensor tensor = backend->allocate({8}, DType::float32, MemoryCategory::gradients, "terms");
    std::string found;
    try {
      world.communicator().all_reduce(*stream, tensor, ReduceOperation::sum);
    } catch (const DeviceError& error) {
      found = error.what();
    }
    check(found.find("make_device_communicator") != std::string::npos, "messages of the host take no stream of a device");
  });
  const int result = checks.finish();
  return result;
}
