#include <dlfcn.h>

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

std::string file_of(const void* address) {
  Dl_info info{};
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "an unknown file";
}

// Type names do not tell: two builds of the CUDA plug-in, or its stand-in, look alike.
std::string unusable(const cuda::CudaBackend* backend, bool several_processes) {
  if (backend == nullptr || !several_processes) return "the NCCL plug-in needs a CUDA backend and a communicator of several processes";
  if (backend->library() == cuda::CudaBackend::linked_library()) return "";
  return text("NCCL plug-in ", file_of(reinterpret_cast<const void*>(&unusable)), " works with the CUDA plug-in ",
              file_of(cuda::CudaBackend::linked_library()), ", but the device was opened by ", file_of(backend->library()),
              "; let DMUON_CUDA_PLUGIN and DMUON_NCCL_PLUGIN name files of one build, or neither");
}

// Before NCCL's first call, which reads the environment: a process has several communicators on one device, whose kernels wait for
// peers; without an order of their launches two ranks may each run first what the other runs second. What is set already stays.
void order_launches() { setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0); }

Communicator* make(Backend& backend, Communicator& world) {
  auto* cuda = dynamic_cast<cuda::CudaBackend*>(&backend);
  auto* peers = dynamic_cast<PeerCommunicator*>(&world);
  const std::string problem = unusable(cuda, peers != nullptr);
  world.agree(problem.empty(), problem, ExitCode::device);
  require_own_devices(*cuda, world);
  order_launches();
  const char* checked = std::getenv("DMUON_CHECK_COLLECTIVES");
  auto session = std::make_shared<Session>(*cuda, checked != nullptr && std::string(checked) == "1");
  return new NcclCommunicator(session, *peers, nullptr);
}

constexpr CommunicatorPlugin plugin{{communicator_plugin_version, sizeof(CommunicatorPlugin), DMUON_INTERFACE}, "nccl", &make};

}  // namespace
}  // namespace dmuon::nccl

extern "C" const dmuon::CommunicatorPlugin* dmuon_communicator_entry() { return &dmuon::nccl::plugin; }
