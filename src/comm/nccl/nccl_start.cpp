// How an NCCL communicator comes to be: created without blocking, and every connection made and used once.
#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cuda/cuda_allocator.h"
#include "comm/backoff.h"
#include "comm/nccl/nccl_group.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::nccl {
namespace {

constexpr std::array<int64_t, 3> warm_up_elements = {1024, 256 << 10, 2 << 20};  // of float32: small, medium and large calls

std::string bytes_text(const ncclUniqueId& id) { return std::string(id.internal, sizeof id.internal); }

}  // namespace

std::shared_ptr<NcclGroup> NcclGroup::make(std::shared_ptr<Session> session, Communicator& control, std::shared_ptr<Group> group) {
  auto made = std::make_shared<NcclGroup>(session, std::move(group));
  made->control_ = &control;
  made->connect(control);
  session->add(made);
  session->backend.supervise(made);
  made->warm_up();
  return made;
}

// Every rank learns whether all could; a rank that is gone is named by the control operation's deadline.
void NcclGroup::connect(Communicator& control) {
  ncclUniqueId id{};
  std::string failure;
  if (group_->rank() == 0)
    if (const ncclResult_t result = ncclGetUniqueId(&id); result != ncclSuccess) failure = error_text(result);
  control.agree(failure.empty(), failure, ExitCode::communication);
  const std::string bytes = control.broadcast_text(bytes_text(id), 0);
  if (bytes.size() != sizeof id.internal)
    throw CommunicationError(text("group \"", group_->name(), "\": the id of its NCCL communicator came with ", bytes.size(),
                                  " bytes instead of ", sizeof id.internal, "; start the same program on all ranks"));
  std::memcpy(id.internal, bytes.data(), sizeof id.internal);
  try {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = group_->name().c_str();
    {
      const std::lock_guard lock(mutex_);
      const ncclResult_t result = ncclCommInitRankConfig(&comm_, group_->size(), id, group_->rank(), &config);
      if (result != ncclSuccess && result != ncclInProgress) throw CommunicationError(error_text(result));
    }
    await_created();
  } catch (const CommunicationError& error) {
    failure = error.what();
  }
  control.agree(failure.empty(), failure, ExitCode::communication);
}

void NcclGroup::await_created() {
  Deadline deadline(group_->deadline_seconds());
  std::string problem;
  for (Backoff backoff; state(problem) == ncclInProgress; backoff.pause()) {
    group_->check();
    if (deadline.passed())
      throw CommunicationError(text("creation of the NCCL communicator \"", group_->name(), "\" on ", group_->who(group_->rank()),
                                    " did not finish within ", format_duration(deadline.seconds()),
                                    ". Remedy: see that the hosts reach each other (NCCL_SOCKET_IFNAME, NCCL_DEBUG=INFO), or raise the "
                                    "deadline in the configuration"));
  }
  if (!problem.empty()) throw CommunicationError(problem);
}

// Connections that NCCL makes lazily are made now, under the deadline of the start and before anything overlaps: from every rank
// to every other, and of each algorithm, which NCCL chooses by the call, its size and whether switches can reduce it (they add
// floats and wide integers, but know no maximum of floats and no bytes).
void NcclGroup::warm_up() {
  const std::unique_ptr<Stream> stream = backend().make_communication_stream("NCCL warm-up");
  const int64_t size = group_->size(), rank = group_->rank();
  const int64_t most = std::max(warm_up_elements.back(), (2 * size + 1) * warm_up_elements.front());
  // Beside the allocator, whose cache and report would keep it.
  const auto source = cuda::make_device_source(backend().device().index);
  const auto release = [&](void* data) { source->release(data); };
  const std::unique_ptr<void, decltype(release)> data(source->allocate(most * static_cast<int64_t>(sizeof(float))), release);
  if (data == nullptr) throw DeviceError(text("no memory of the device is left to warm NCCL up, ", most * 4, " bytes"));
  auto* const values = static_cast<float*>(data.get());
  const auto use = [&](const std::function<void(ncclComm_t, cudaStream_t)>& calls) { call(*stream, "nccl warm-up", {}, calls); };
  enter(*stream, {.kind = OperationKind::barrier, .label = "warm-up"}, [&] {
    for (const int64_t wanted : warm_up_elements) {
      const int64_t share = std::max<int64_t>(1, wanted / size), all = share * size;
      for (const ncclRedOp_t operation : {ncclSum, ncclMax})
        use([&](ncclComm_t comm, cudaStream_t handle) { check(ncclAllReduce(values, values, all, ncclFloat32, operation, comm, handle)); });
      use([&](ncclComm_t comm, cudaStream_t handle) {
        check(ncclAllGather(values + rank * share, values, share, ncclFloat32, comm, handle));
      });
      use([&](ncclComm_t comm, cudaStream_t handle) { check(ncclBroadcast(values, values, all, ncclFloat32, 0, comm, handle)); });
    }
    use([&](ncclComm_t comm, cudaStream_t handle) {
      const auto few = static_cast<size_t>(warm_up_elements.front());
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        check(ncclSend(values + (1 + peer) * warm_up_elements.front(), few, ncclFloat32, peer, comm, handle));
        check(ncclRecv(values + (1 + size + peer) * warm_up_elements.front(), few, ncclFloat32, peer, comm, handle));
      }
    });
  });
  stream->synchronize();
}

}  // namespace dmuon::nccl
