#include "comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <cstdlib>

#include "comm/arguments.h"
#include "comm/device/single_device.h"
#include "comm/nccl/transfers.h"
#include "comm/reduction.h"
#include "dmuon/core/checked.h"
#include "dmuon/core/text.h"

namespace dmuon::nccl {
namespace {

int64_t bytes_of(std::span<const int64_t> cuts, int rank, DType dtype) {
  return (cuts[static_cast<size_t>(rank) + 1] - cuts[static_cast<size_t>(rank)]) * size_of(dtype);
}

std::vector<int64_t> lengths(std::span<const int64_t> cuts) {
  std::vector<int64_t> result;
  for (size_t r = 0; r + 1 < cuts.size(); ++r) result.push_back(cuts[r + 1] - cuts[r]);
  return result;
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<Session> session, PeerCommunicator& control, std::unique_ptr<Communicator> owned)
    : session_(std::move(session)), control_(control), owned_(std::move(owned)) {
  // A copy of the handle to the shared state of the control group: its names, numbers, deadline and failure are ours.
  nccl_ = NcclGroup::make(session_, control_, control_.shared_group());
  flag_ = session_->backend.allocate({1}, DType::int32, MemoryCategory::communication, "a barrier");
  session_->backend.zero(session_->backend.compute_stream(), flag_);
  session_->backend.compute_stream().synchronize();
}

Tensor NcclCommunicator::allocate(Backend& backend, const Shape& shape, DType dtype, MemoryCategory category, std::string_view name) {
  return backend.allocate(shape, dtype, category, name);
}

void NcclCommunicator::barrier(Stream& stream) {
  nccl_->enter(stream, {.kind = OperationKind::barrier}, [&] { nccl::all_reduce(*nccl_, stream, flag_, ReduceOperation::maximum); });
}

void NcclCommunicator::broadcast(Stream& stream, const Tensor& data, int root) {
  check_root("broadcast", root, size());
  nccl_->enter(stream,
               {.kind = OperationKind::broadcast, .dtype = data.dtype(), .root = group().world_rank(root), .elements = data.elements()},
               [&] { nccl::broadcast(*nccl_, stream, data, root); });
  if (rank() == root) count([&](int) { return data.bytes(); });
}

void NcclCommunicator::all_reduce(Stream& stream, const Tensor& data, ReduceOperation operation) {
  check_reducible("all_reduce", data.dtype(), operation);
  nccl_->enter(stream, {.kind = OperationKind::all_reduce, .dtype = data.dtype(), .reduction = operation, .elements = data.elements()},
               [&] { nccl::all_reduce(*nccl_, stream, data, operation); });
  if (gathered_whole(data)) return count([&](int) { return data.bytes(); });
  // As if every rank reduced one part of it and gave it to the others, which is what any algorithm moves at least.
  const int64_t share = divide_up(data.elements(), size());
  const auto part = [&](int r) {
    return (std::min(data.elements(), (r + 1) * share) - std::min(data.elements(), r * share)) * size_of(data.dtype());
  };
  count([&](int peer) { return part(peer) + part(rank()); });
}

void NcclCommunicator::all_gather_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, GatherForm form) {
  check_cuts("all_gather_v", cuts, size(), buffer.elements());
  nccl_->enter(stream,
               {.kind = OperationKind::all_gather_v,
                .dtype = buffer.dtype(),
                .root = static_cast<int>(form),
                .elements = buffer.elements(),
                .cuts_hash = hash_cuts(cuts)},
               [&] { nccl::all_gather_v(*nccl_, stream, buffer, cuts, form); });
  count([&](int) { return bytes_of(cuts, rank(), buffer.dtype()); });
}

void NcclCommunicator::reduce_scatter_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result,
                                        bool accumulate) {
  check_reduce_scatter(buffer, cuts, result, rank(), size());
  check_reducible("reduce_scatter_v", buffer.dtype(), ReduceOperation::sum);
  nccl_->enter(
      stream,
      {.kind = OperationKind::reduce_scatter_v, .dtype = buffer.dtype(), .elements = buffer.elements(), .cuts_hash = hash_cuts(cuts)},
      [&] { nccl::reduce_scatter_v(*nccl_, stream, buffer, cuts, result, ReduceOperation::sum, accumulate); });
  count([&](int peer) { return bytes_of(cuts, peer, buffer.dtype()); });
}

void NcclCommunicator::all_to_all_v(Stream& stream, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive,
                                    std::span<const int64_t> receive_cuts) {
  check_all_to_all(send, send_cuts, receive, receive_cuts, rank(), size());
  nccl_->enter(
      stream, {.kind = OperationKind::all_to_all_v, .dtype = send.dtype()},
      [&] { nccl::all_to_all_v(*nccl_, stream, send, send_cuts, receive, receive_cuts); }, lengths(send_cuts), lengths(receive_cuts));
  count([&](int peer) { return bytes_of(send_cuts, peer, send.dtype()); });
}

std::unique_ptr<Communicator> NcclCommunicator::wrap(std::unique_ptr<Communicator> control) const {
  Communicator& like = *control;
  if (like.size() == 1) return make_single_device_communicator(session_->backend, like, std::move(control));
  auto& peers = dynamic_cast<PeerCommunicator&>(like);
  return std::make_unique<NcclCommunicator>(session_, peers, std::move(control));
}

std::unique_ptr<Communicator> NcclCommunicator::split(int color, int key, const std::string& name) {
  return wrap(control_.split(color, key, name));
}

std::unique_ptr<Communicator> NcclCommunicator::divide_into_nodes(int nodes, const std::string& name) {
  return wrap(control_.divide_into_nodes(nodes, name));
}

void NcclCommunicator::abort(ExitCode code) {
  control_.abort(code);
  std::_Exit(static_cast<int>(code));  // not reached; the compiler does not trust virtual functions to not return
}

}  // namespace dmuon::nccl
