// NCCL's functions, with the signatures of its header, between processes of one host. They check what NCCL takes on trust:
// that all ranks make the same calls with the same sizes (on a device such a mistake hangs or corrupts memory).
//
// Faults for tests, in the environment variable DMUON_NCCL_ON_HOST_FAULT: "RANK:error:OPERATION" lets the communicator with which
// rank RANK of the job first calls OPERATION (send, all_gather, broadcast or all_reduce) fail asynchronously;
// "RANK:stop:OPERATION" makes that call, and its group, never begin. Calls in float32, with which connections are warmed up, do
// not count: data travels in integers.
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

#include "cuda_on_host/device_memory.h"
#include "cuda_on_host/nccl_operations.h"
#include "cuda_on_host/stream_queue.h"

struct ncclComm {
  std::shared_ptr<cuda_on_host::NcclState> state;
  bool blocking = true;
  int questions = 0;  // ncclInProgress that are still to be answered, as a non-blocking communicator does
};

namespace {

using cuda_on_host::NcclCall;
using cuda_on_host::NcclChannel;
using cuda_on_host::NcclKind;
using cuda_on_host::NcclOperation;
using cuda_on_host::NcclState;

struct Entered {
  ncclComm_t comm;
  cudaStream_t stream;
  NcclCall call;
};

thread_local int group_depth = 0;
thread_local std::vector<Entered> group_calls;

struct Fault {
  int rank = -1;
  std::string kind, operation;
};

Fault planned_fault() {
  Fault fault;
  char kind[16] = "", operation[16] = "";
  if (const char* plan = std::getenv("DMUON_NCCL_ON_HOST_FAULT"))
    if (std::sscanf(plan, "%d:%15[a-z]:%15[a-z_]", &fault.rank, kind, operation) == 3) fault.kind = kind, fault.operation = operation;
  return fault;
}

bool named(const NcclCall& call, const std::string& operation) {
  return (call.kind == NcclKind::send && operation == "send") || (call.kind == NcclKind::all_gather && operation == "all_gather") ||
         (call.kind == NcclKind::broadcast && operation == "broadcast") || (call.kind == NcclKind::all_reduce && operation == "all_reduce");
}

// The kind of fault that is planned for these calls of one group, "" for none.
std::string fault_of(const std::vector<NcclCall>& calls) {
  static const Fault fault = planned_fault();
  static bool happened = false;
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (happened || fault.kind.empty() || rank == nullptr || std::atoi(rank) != fault.rank) return "";
  for (const NcclCall& call : calls)
    if (call.type != ncclFloat32 && named(call, fault.operation)) {
      happened = true;
      return fault.kind;
    }
  return "";
}

// The calls of one communicator, which all run at once, as its group promises. Collectives keep their order.
void queue(ncclComm_t comm, cudaStream_t stream, const std::vector<NcclCall>& calls) {
  const std::shared_ptr<NcclState> state = comm->state;
  auto operations = std::make_shared<std::vector<NcclOperation>>();
  for (const NcclCall& call : calls) operations->emplace_back(state, call);
  const std::string fault = fault_of(calls);
  if (fault == "error") state->fail(ncclSystemError, "planned by a test");
  const bool stopped = fault == "stop";
  if (!comm->blocking) comm->questions = 2;
  // Held by value: the work may not depend on this communicator's handle, which an abort frees.
  cuda_on_host::queue_polled(stream, [state, operations, stopped] {
    if (stopped) return state->aborted.load();
    bool over = true, collectives_over = true;
    for (NcclOperation& operation : *operations) {
      if (!operation.point_to_point() && !collectives_over) continue;
      const bool done = operation.poll();
      over = over && done;
      if (!operation.point_to_point()) collectives_over = done;
    }
    return over && collectives_over;
  });
}

ncclResult_t run_group() {
  std::vector<Entered> calls;
  calls.swap(group_calls);
  std::vector<ncclComm_t> order;
  std::map<ncclComm_t, std::pair<cudaStream_t, std::vector<NcclCall>>> by_comm;
  for (const Entered& entered : calls) {
    if (by_comm.count(entered.comm) == 0) {
      order.push_back(entered.comm);
      by_comm[entered.comm].first = entered.stream;
    }
    if (by_comm[entered.comm].first != entered.stream) return ncclInvalidUsage;
    by_comm[entered.comm].second.push_back(entered.call);
  }
  bool waits = false;
  for (const ncclComm_t comm : order) {
    queue(comm, by_comm[comm].first, by_comm[comm].second);
    waits = waits || !comm->blocking;
  }
  return waits ? ncclInProgress : ncclSuccess;
}

bool usable(const void* address, int64_t bytes) {
  return address == nullptr || bytes == 0 ||
         (cuda_on_host::is_device_memory(address) && cuda_on_host::range_error(address, static_cast<size_t>(bytes)).empty());
}

ncclResult_t enter(ncclComm_t comm, cudaStream_t stream, const NcclCall& call) {
  if (comm == nullptr) return ncclInvalidArgument;
  NcclState& state = *comm->state;
  const bool whole =
      call.kind == NcclKind::send || call.kind == NcclKind::receive || call.kind == NcclKind::broadcast || call.kind == NcclKind::reduce;
  if ((whole && (call.peer < 0 || call.peer >= state.channel->ranks())) || call.count < 0) return ncclInvalidArgument;
  const int64_t all = call.count * cuda_on_host::nccl_type_bytes(call.type) * state.channel->ranks();
  const int64_t bytes = all / state.channel->ranks();
  if (!usable(call.source, call.kind == NcclKind::reduce_scatter ? all : bytes) ||
      !usable(call.destination, call.kind == NcclKind::all_gather ? all : bytes)) {
    std::fprintf(stderr, "stand-in NCCL: a buffer is not inside the device's memory\n");
    return ncclInvalidArgument;
  }
  if (state.aborted) return ncclInvalidUsage;
  if (state.error != ncclSuccess) return state.error;
  group_calls.push_back({comm, stream, call});
  return group_depth > 0 ? ncclSuccess : run_group();
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id->internal, 0, sizeof id->internal);
  std::strncpy(id->internal, NcclChannel::create().c_str(), sizeof id->internal - 1);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (ranks < 1 || rank < 0 || rank >= ranks) return ncclInvalidArgument;
  auto state = std::make_shared<NcclState>();
  state->channel = NcclChannel::join(id.internal, rank, ranks);
  if (!state->channel) return ncclSystemError;
  state->sent.resize(static_cast<size_t>(ranks));
  state->received.resize(static_cast<size_t>(ranks));
  *comm = new ncclComm{state, config == nullptr || config->blocking != 0, 2};
  if (!(*comm)->blocking) return ncclInProgress;
  while (!state->channel->complete()) {
  }
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = comm->state->error;
  if (*error != ncclSuccess) return ncclSuccess;
  if (!comm->state->channel->complete() || (!comm->blocking && comm->questions > 0 && comm->questions-- > 0)) *error = ncclInProgress;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclSystemError:
      return "unhandled system error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "another result";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  static thread_local std::string what;
  what = comm == nullptr ? "" : comm->state->what();
  return what.c_str();
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) { return comm->blocking ? ncclSuccess : ncclInProgress; }

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->state->aborted = true;
  delete comm;
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  return --group_depth > 0 ? ncclSuccess : run_group();
}

ncclResult_t ncclSend(const void* source, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return enter(comm, stream, {NcclKind::send, source, nullptr, static_cast<int64_t>(count), type, ncclSum, peer});
}

ncclResult_t ncclRecv(void* destination, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
  return enter(comm, stream, {NcclKind::receive, nullptr, destination, static_cast<int64_t>(count), type, ncclSum, peer});
}

ncclResult_t ncclBroadcast(const void* source, void* destination, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return enter(comm, stream, {NcclKind::broadcast, source, destination, static_cast<int64_t>(count), type, ncclSum, root});
}

ncclResult_t ncclAllGather(const void* source, void* destination, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  return enter(comm, stream, {NcclKind::all_gather, source, destination, static_cast<int64_t>(count), type, ncclSum, 0});
}

ncclResult_t ncclAllReduce(const void* source, void* destination, size_t count, ncclDataType_t type, ncclRedOp_t operation, ncclComm_t comm,
                           cudaStream_t stream) {
  return enter(comm, stream, {NcclKind::all_reduce, source, destination, static_cast<int64_t>(count), type, operation, 0});
}

ncclResult_t ncclReduce(const void* source, void* destination, size_t count, ncclDataType_t type, ncclRedOp_t operation, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return enter(comm, stream, {NcclKind::reduce, source, destination, static_cast<int64_t>(count), type, operation, root});
}

ncclResult_t ncclReduceScatter(const void* source, void* destination, size_t count, ncclDataType_t type, ncclRedOp_t operation,
                               ncclComm_t comm, cudaStream_t stream) {
  return enter(comm, stream, {NcclKind::reduce_scatter, source, destination, static_cast<int64_t>(count), type, operation, 0});
}

}  // extern "C"
