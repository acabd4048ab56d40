// NCCL's functions, with the signatures of its header, between processes of one host. They check what NCCL takes on trust:
// that all ranks make the same calls with the same sizes (on a device such a mistake hangs or corrupts memory).
//
// What NCCL allows and a program should not rely on is refused too: several communicators on a device without an order of their
// launches (NCCL_LAUNCH_ORDER_IMPLICIT), and calls of data that would be the first to use an algorithm, because NCCL connects it
// only then. Calls in float32 are warm-ups: data travels in integers.
//
// An abort waits for the device, as NCCL's does where it frees memory; those of one group are all asked to stop before.
//
// Faults for tests, in the environment variable DMUON_NCCL_ON_HOST_FAULT, separated by commas: "RANK:error:OPERATION" lets the
// communicator with which rank RANK of the job first calls OPERATION (send, all_gather, broadcast or all_reduce) fail
// asynchronously; "RANK:stop:OPERATION" makes that call, and its group, never begin; "RANK:pending:OPERATION" lets it never be
// taken: the communicator stays busy with it. Warm-ups do not count.
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "cuda_on_host/device_memory.h"
#include "cuda_on_host/nccl_operations.h"
#include "cuda_on_host/stream_queue.h"

struct ncclComm {
  std::shared_ptr<cuda_on_host::NcclState> state;
  bool blocking = true;
  int questions = 0;     // ncclInProgress that are still to be answered, as a non-blocking communicator does
  bool pending = false;  // for ever
  std::set<std::tuple<cuda_on_host::NcclKind, int, bool>> connected = {};  // kind, magnitude, whether switches may reduce
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
thread_local std::vector<ncclComm_t> group_aborts;
std::atomic<int> communicators = 0;

struct Fault {
  int rank = -1;
  std::string kind, operation;
  bool happened = false;
};

std::vector<Fault> planned_faults() {
  std::vector<Fault> faults;
  const char* plan = std::getenv("DMUON_NCCL_ON_HOST_FAULT");
  std::istringstream in(plan == nullptr ? "" : plan);
  for (std::string entry; std::getline(in, entry, ',');) {
    Fault fault;
    char kind[16] = "", operation[16] = "";
    if (std::sscanf(entry.c_str(), "%d:%15[a-z]:%15[a-z_]", &fault.rank, kind, operation) != 3) continue;
    fault.kind = kind, fault.operation = operation;
    faults.push_back(fault);
  }
  return faults;
}

bool named(const NcclCall& call, const std::string& operation) {
  return (call.kind == NcclKind::send && operation == "send") || (call.kind == NcclKind::all_gather && operation == "all_gather") ||
         (call.kind == NcclKind::broadcast && operation == "broadcast") || (call.kind == NcclKind::all_reduce && operation == "all_reduce");
}

// Elements of a warm-up that travel, so that it costs a test nothing; nobody looks at them.
constexpr int64_t most_of_warm_up = 1024;
bool warms_up(const NcclCall& call) { return call.type == ncclFloat32; }

// The kind of fault that is planned for these calls of one group, "" for none.
std::string fault_of(const std::vector<NcclCall>& calls) {
  static std::vector<Fault> faults = planned_faults();
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  for (Fault& fault : faults) {
    if (fault.happened || rank == nullptr || std::atoi(rank) != fault.rank) continue;
    for (const NcclCall& call : calls) {
      if (warms_up(call) || !named(call, fault.operation)) continue;
      fault.happened = true;
      return fault.kind;
    }
  }
  return "";
}

// NCCL chooses algorithms by the size of a call, and for sums and other reductions by whether switches can do them.
void use_connections(ncclComm& comm, const NcclCall& call) {
  if (call.kind == NcclKind::send || call.kind == NcclKind::receive) return;
  const int64_t bytes =
      call.count * cuda_on_host::nccl_type_bytes(call.type) * (call.kind == NcclKind::all_gather ? comm.state->channel->ranks() : 1);
  const int magnitude = bytes <= (int64_t{64} << 10) ? 0 : bytes <= (int64_t{4} << 20) ? 1 : 2;
  const bool switches = call.kind == NcclKind::all_reduce &&
                        (call.type == ncclInt32 || call.type == ncclInt64 || (call.type == ncclFloat32 && call.operation == ncclSum));
  const std::tuple use{call.kind, magnitude, switches};
  if (warms_up(call))
    comm.connected.insert(use);
  else if (!comm.connected.contains(use))
    comm.state->fail(ncclInternalError, "a call of kind " + std::to_string(static_cast<int>(call.kind)) + " with " + std::to_string(bytes) +
                                            " bytes is the first of its kind and magnitude: connect before");
}

ncclResult_t finish_aborts() {
  std::vector<ncclComm_t> comms;
  comms.swap(group_aborts);
  if (comms.empty()) return ncclSuccess;
  cudaDeviceSynchronize();
  for (const ncclComm_t comm : comms) delete comm;
  communicators -= static_cast<int>(comms.size());
  return ncclSuccess;
}

// The calls of one communicator, which all run at once, as its group promises. Collectives keep their order.
void queue(ncclComm_t comm, cudaStream_t stream, const std::vector<NcclCall>& calls) {
  const std::shared_ptr<NcclState> state = comm->state;
  auto operations = std::make_shared<std::vector<NcclOperation>>();
  for (const NcclCall& call : calls) {
    use_connections(*comm, call);
    NcclCall queued = call;
    if (warms_up(call)) queued.count = std::min(call.count, most_of_warm_up);
    operations->emplace_back(state, queued);
  }
  const std::string fault = fault_of(calls);
  if (fault == "error") state->fail(ncclSystemError, "planned by a test");
  comm->pending = fault == "pending";
  const bool stopped = fault == "stop" || comm->pending;
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
  if (communicators++ > 0 && std::getenv("NCCL_LAUNCH_ORDER_IMPLICIT") == nullptr) {
    std::fprintf(stderr, "stand-in NCCL: several communicators and NCCL_LAUNCH_ORDER_IMPLICIT is not set\n");
    return ncclInvalidUsage;
  }
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
  if (!comm->state->channel->complete() || comm->pending || (!comm->blocking && comm->questions > 0 && comm->questions-- > 0))
    *error = ncclInProgress;
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
  --communicators;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  comm->state->aborted = true;
  group_aborts.push_back(comm);
  return group_depth > 0 ? ncclSuccess : finish_aborts();
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (group_depth == 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  const ncclResult_t result = run_group();
  const ncclResult_t aborted = finish_aborts();
  return result == ncclSuccess ? aborted : result;
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
