#include "cuda_on_host/nccl_operations.h"

#include <cstring>

#include "comm/reduction.h"
#include "cuda_on_host/device_memory.h"

namespace cuda_on_host {

int64_t nccl_type_bytes(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

namespace {

dmuon::DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return dmuon::DType::int8;
    case ncclUint8:
      return dmuon::DType::uint8;
    case ncclInt32:
      return dmuon::DType::int32;
    case ncclInt64:
      return dmuon::DType::int64;
    case ncclFloat16:
      return dmuon::DType::float16;
    case ncclBfloat16:
      return dmuon::DType::bfloat16;
    case ncclFloat64:
      return dmuon::DType::float64;
    default:
      return dmuon::DType::float32;
  }
}

}  // namespace

// Shown before the data; what all ranks must have alike.
struct NcclOperation::Header {
  NcclKind kind;
  int32_t type, operation, root;
  int64_t count;
};

NcclOperation::Header NcclOperation::header() const {
  const bool rooted = call_.kind == NcclKind::broadcast || call_.kind == NcclKind::reduce;
  return {call_.kind, static_cast<int32_t>(call_.type), static_cast<int32_t>(call_.operation), rooted ? call_.peer : 0, call_.count};
}

NcclOperation::NcclOperation(std::shared_ptr<NcclState> state, const NcclCall& call) : state_(std::move(state)), call_(call) {
  const auto peer = static_cast<size_t>(call.peer);
  number_ = call.kind == NcclKind::send      ? ++state_->sent[peer]
            : call.kind == NcclKind::receive ? ++state_->received[peer]
                                             : ++state_->collectives;
}

bool NcclOperation::poll() {
  if (over_ || state_->aborted) return true;
  if (state_->error != ncclSuccess) return false;  // a kernel that hangs until the communicator is aborted
  over_ = call_.kind == NcclKind::send ? poll_send() : call_.kind == NcclKind::receive ? poll_receive() : poll_collective();
  return over_;
}

// A send is over when it was received: nothing is buffered, so that programs which rely on it hang here.
bool NcclOperation::poll_send() {
  NcclChannel& channel = *state_->channel;
  const int place = channel.pair(channel.rank(), call_.peer);
  NcclChannel::Counters& counters = channel.counters(place);
  if (!shown_) {
    if (counters.written != number_ - 1 || counters.read != number_ - 1) return false;
    show();
  }
  return counters.read >= number_;
}

bool NcclOperation::poll_receive() {
  NcclChannel& channel = *state_->channel;
  const int place = channel.pair(call_.peer, channel.rank());
  NcclChannel::Counters& counters = channel.counters(place);
  if (counters.written < number_ || counters.read != number_ - 1) return false;
  Header theirs{};
  channel.read(place, 0, &theirs, sizeof theirs);
  const int64_t bytes = call_.count * nccl_type_bytes(call_.type);
  if (theirs.count != call_.count || theirs.type != static_cast<int32_t>(call_.type)) {
    state_->fail(ncclInvalidArgument, "rank " + std::to_string(call_.peer) + " sends " + std::to_string(theirs.count) + " elements, rank " +
                                          std::to_string(channel.rank()) + " receives " + std::to_string(call_.count));
    return false;
  }
  channel.read(place, sizeof theirs, call_.destination, bytes);
  mark_written(call_.destination, static_cast<size_t>(bytes));
  counters.read = number_;
  return true;
}

void NcclOperation::show() {
  NcclChannel& channel = *state_->channel;
  const bool all_data = call_.kind == NcclKind::reduce_scatter;
  const bool mine = call_.kind != NcclKind::broadcast || call_.peer == channel.rank();
  const int place = call_.kind == NcclKind::send ? channel.pair(channel.rank(), call_.peer) : channel.common(channel.rank());
  const Header own = header();
  channel.write(place, 0, &own, sizeof own);
  if (mine) channel.write(place, sizeof own, call_.source, call_.count * nccl_type_bytes(call_.type) * (all_data ? channel.ranks() : 1));
  channel.counters(place).written = number_;
  shown_ = true;
}

bool NcclOperation::poll_collective() {
  NcclChannel& channel = *state_->channel;
  if (!shown_) {
    NcclChannel::Counters& own = channel.counters(channel.common(channel.rank()));
    if (own.written != number_ - 1 || own.read != (number_ - 1) * channel.ranks()) return false;
    show();
  }
  for (int rank = 0; rank < channel.ranks(); ++rank)
    if (channel.counters(channel.common(rank)).written < number_) return false;
  if (!agree()) return false;
  finish();
  for (int rank = 0; rank < channel.ranks(); ++rank) ++channel.counters(channel.common(rank)).read;
  return true;
}

bool NcclOperation::agree() {
  NcclChannel& channel = *state_->channel;
  const Header own = header();
  for (int rank = 0; rank < channel.ranks(); ++rank) {
    Header theirs{};
    channel.read(channel.common(rank), 0, &theirs, sizeof theirs);
    if (std::memcmp(&theirs, &own, sizeof own) == 0) continue;
    state_->fail(ncclInvalidArgument, "ranks " + std::to_string(channel.rank()) + " and " + std::to_string(rank) + " call collective " +
                                          std::to_string(number_) + " as kind " + std::to_string(static_cast<int>(own.kind)) + " of " +
                                          std::to_string(own.count) + " and kind " + std::to_string(static_cast<int>(theirs.kind)) +
                                          " of " + std::to_string(theirs.count) + " elements");
    return false;
  }
  return true;
}

void NcclOperation::finish() {
  NcclChannel& channel = *state_->channel;
  const int64_t bytes = call_.count * nccl_type_bytes(call_.type);
  const auto data = static_cast<int64_t>(sizeof(Header));
  switch (call_.kind) {
    case NcclKind::broadcast:
      channel.read(channel.common(call_.peer), data, call_.destination, bytes);
      break;
    case NcclKind::all_gather:
      for (int rank = 0; rank < channel.ranks(); ++rank)
        channel.read(channel.common(rank), data, static_cast<char*>(call_.destination) + rank * bytes, bytes);
      mark_written(call_.destination, static_cast<size_t>(channel.ranks() * bytes));
      return;
    case NcclKind::all_reduce:
      reduce(0, call_.count);
      break;
    case NcclKind::reduce:
      if (call_.peer != channel.rank()) return;
      reduce(0, call_.count);
      break;
    default:
      reduce(call_.count * channel.rank(), call_.count);
  }
  mark_written(call_.destination, static_cast<size_t>(bytes));
}

// In rank order.
void NcclOperation::reduce(int64_t first, int64_t count) {
  NcclChannel& channel = *state_->channel;
  const int64_t width = nccl_type_bytes(call_.type);
  std::vector<std::vector<char>> terms(static_cast<size_t>(channel.ranks()), std::vector<char>(static_cast<size_t>(count * width)));
  std::vector<const void*> sources;
  for (int rank = 0; rank < channel.ranks(); ++rank) {
    std::vector<char>& term = terms[static_cast<size_t>(rank)];
    channel.read(channel.common(rank), static_cast<int64_t>(sizeof(Header)) + first * width, term.data(), count * width);
    sources.push_back(term.data());
  }
  const dmuon::DType dtype = dtype_of(call_.type);
  const dmuon::ReduceOperation operation = call_.operation == ncclSum   ? dmuon::ReduceOperation::sum
                                           : call_.operation == ncclMax ? dmuon::ReduceOperation::maximum
                                                                        : dmuon::ReduceOperation::minimum;
  dmuon::reduce_in_order({dtype, dtype, operation}, sources, count, call_.destination, false);
}

void NcclState::fail(ncclResult_t result, const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (error != ncclSuccess) return;
  what_ = text;
  error = result;
}

std::string NcclState::what() {
  const std::lock_guard lock(mutex_);
  return what_;
}

}  // namespace cuda_on_host
