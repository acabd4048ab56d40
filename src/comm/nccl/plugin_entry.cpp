#include <cstdlib>
#include <map>

#include "comm/nccl/nccl_communicator.h"
#include "dmuon/comm/device_communicator.h"
#include "dmuon/core/text.h"

namespace dmuon::nccl {
namespace {

// NCCL hangs or fails in strange ways when two ranks use one device.
void require_own_devices(const cuda::CudaBackend& backend, Communicator& world) {
  const std::vector<std::string> devices = world.all_gather_text(backend.identity());
  for (int rank = 0; rank < world.size(); ++rank)
    for (int other = 0; other < rank; ++other) {
      const auto device = [&](int r) { return text(world.host(r), ' ', devices[static_cast<size_t>(r)]); };
      if (device(rank) != device(other)) continue;
      throw DeviceError(text("ranks ", other, " and ", rank, " share one GPU of ", world.host(rank), " (", backend.information().device,
                             ", ", devices[static_cast<size_t>(rank)],
                             "): start at most one rank per GPU (mpirun -np), or see that CUDA_VISIBLE_DEVICES leaves every rank its own"));
    }
}

Communicator* make(Backend& backend, Communicator& world) {
  auto* cuda = dynamic_cast<cuda::CudaBackend*>(&backend);
  auto* peers = dynamic_cast<PeerCommunicator*>(&world);
  if (cuda == nullptr || peers == nullptr)
    throw DeviceError("the NCCL plug-in needs a CUDA backend of the same build and a communicator of several processes");
  require_own_devices(*cuda, world);
  const char* checked = std::getenv("DMUON_CHECK_COLLECTIVES");
  auto session = std::make_shared<Session>(Session{.backend = *cuda});
  session->check_calls = checked != nullptr && std::string(checked) == "1";
  return new NcclCommunicator(session, *peers, nullptr);
}

constexpr CommunicatorPlugin plugin{communicator_plugin_version, "nccl", &make};

}  // namespace
}  // namespace dmuon::nccl

extern "C" const dmuon::CommunicatorPlugin* dmuon_communicator_entry() { return &dmuon::nccl::plugin; }
