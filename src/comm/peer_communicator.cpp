#include "comm/peer_communicator.h"

#include <cstring>
#include <set>
#include <utility>

#include "comm/arguments.h"
#include "comm/collectives.h"
#include "comm/exchange.h"
#include "comm/reduction.h"
#include "comm/shared/connect.h"
#include "comm/shared/shared_collectives.h"
#include "comm/shared/shared_storage.h"
#include "dmuon/backend/backend.h"
#include "dmuon/backend/device_clock.h"
#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/external_memory.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

char* bytes_of(const Tensor& tensor) { return static_cast<char*>(tensor.raw()); }

// Peers read and write tensors on the host: an address of a device would end the process.
void check_host_stream(const Operation& operation, const Stream& stream) {
  if (dynamic_cast<const DeviceClock*>(&stream) == nullptr) return;
  throw DeviceError(text(operation.describe(), " on a stream of a device: this communicator moves host memory only; use the one of ",
                         "make_device_communicator, whose plug-in libdmuon_nccl.so moves device memory"));
}

}  // namespace

void PeerCommunicator::perform(Group& group, const Operation& operation, const std::vector<Tensor>& tensors, const Body& body) {
  group.check();
  if (group.shared() == nullptr) return body.messages(*std::make_shared<Exchange>(group, operation, tensors));
  try {
    SharedExchange exchange(group, operation, tensors);
    if (!body.shared) exchange.enter();  // for ranks in another operation to see
    if (!body.shared || !body.shared(exchange)) body.messages(*std::make_shared<Exchange>(group, operation, tensors));
    exchange.leave();
  } catch (const CommunicationError& error) {
    group.fail(error.what());
  }
}

Operation PeerCommunicator::entered(Operation operation) {
  operation.sequence = group_->next_sequence();
  operation.label = std::exchange(next_label_, {});
  return operation;
}

void PeerCommunicator::submit(Stream& stream, Operation operation, std::vector<Tensor> tensors, Body body) {
  operation = entered(std::move(operation));
  if (!tensors.empty()) check_host_stream(operation, stream);
  stream.submit([group = group_, operation = std::move(operation), tensors = std::move(tensors), body = std::move(body)] {
    perform(*group, operation, tensors, body);
  });
}

void PeerCommunicator::run(Operation operation, const Body& body) { perform(*group_, entered(std::move(operation)), {}, body); }

Tensor PeerCommunicator::allocate(Backend& backend, const Shape& shape, DType dtype, MemoryCategory category, std::string_view name) {
  if (group_->shared() == nullptr) {
    std::set<int> nodes;
    for (int r = 0; r < size(); ++r) nodes.insert(node(r));
    if (nodes.size() == 1 || static_cast<int>(nodes.size()) == size()) return backend.allocate(shape, dtype, category, name);
    if (!node_group_) node_group_ = split(node(rank()), rank(), text(group_->name(), " (node)"));
    return node_group_->allocate(backend, shape, dtype, category, name);
  }
  const int64_t bytes = shape.elements() * size_of(dtype);
  const Operation operation{.kind = OperationKind::allocate, .dtype = dtype, .elements = shape.elements()};
  // Where nothing is computed, or memory is a device's, there is nothing to share.
  if (backend.shape_only() || bytes == 0) return backend.allocate(shape, dtype, category, name);
  const bool own = backend.name() == "cuda" || backend.mode() == HostMode::guarded;
  for (const std::string& theirs : gather_text(operation, own ? "own" : ""))
    if (!theirs.empty()) return backend.allocate(shape, dtype, category, name);
  const SharedSegmentRequest request{.rank = rank(),
                                     .ranks = size(),
                                     .bytes_per_rank = round_up(bytes, 4096),
                                     .reserve = true,
                                     .one_process = group_->transport().one_process()};
  const SharedSegmentResult made = share_segment(request, [&](const std::string& mine) { return gather_text(operation, mine); });
  if (!made.segment) {
    warn_without_shared_memory(*group_, made);
    return backend.allocate(shape, dtype, category, name);
  }
  const Tensor tensor(make_shared_storage(made.segment, request.bytes_per_rank * rank(), bytes, category,
                                          count_external_memory(backend.allocator(), bytes, category)),
                      0, shape, dtype);
  if (backend.mode() != HostMode::normal) std::memset(tensor.raw(), 0xff, static_cast<size_t>(bytes));  // as its allocator would
  return tensor;
}

void PeerCommunicator::barrier(Stream& stream) {
  submit(stream, {.kind = OperationKind::barrier}, {},
         {[](Exchange& exchange) { run_barrier(exchange); },
          [](SharedExchange& exchange) {
            shared_barrier(exchange);
            return true;
          }});
}

void PeerCommunicator::broadcast(Stream& stream, const Tensor& data, int root) {
  check_root("broadcast", root, size());
  submit(stream, {.kind = OperationKind::broadcast, .dtype = data.dtype(), .root = group_->world_rank(root), .elements = data.elements()},
         {data},
         {[data, root](Exchange& exchange) { run_broadcast(exchange, bytes_of(data), data.bytes(), root); },
          [data, root](SharedExchange& exchange) { return shared_broadcast(exchange, data, root); }});
}

void PeerCommunicator::all_reduce(Stream& stream, const Tensor& data, ReduceOperation operation) {
  check_reducible("all_reduce", data.dtype(), operation);
  submit(stream, {.kind = OperationKind::all_reduce, .dtype = data.dtype(), .reduction = operation, .elements = data.elements()}, {data},
         {[data, operation](Exchange& exchange) { run_all_reduce(exchange, data.dtype(), operation, bytes_of(data), data.elements()); },
          [data, operation](SharedExchange& exchange) {
            shared_all_reduce(exchange, operation, data);
            return true;
          }});
}

void PeerCommunicator::all_gather_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, GatherForm form) {
  check_cuts("all_gather_v", cuts, size(), buffer.elements());
  const Operation operation{.kind = OperationKind::all_gather_v,
                            .dtype = buffer.dtype(),
                            .root = static_cast<int>(form),
                            .elements = buffer.elements(),
                            .cuts_hash = hash_cuts(cuts)};
  const std::vector<int64_t> bytes = cuts_in_bytes(cuts, buffer.dtype());
  submit(stream, operation, {buffer},
         {[buffer, form, bytes](Exchange& exchange) { run_all_gather_v(exchange, bytes_of(buffer), bytes, form); },
          [buffer, bytes](SharedExchange& exchange) { return shared_all_gather_v(exchange, buffer, bytes); }});
}

void PeerCommunicator::reduce_scatter_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result,
                                        bool accumulate) {
  check_reduce_scatter(buffer, cuts, result, rank(), size());
  check_reducible("reduce_scatter_v", buffer.dtype(), ReduceOperation::sum);
  const Operation operation{
      .kind = OperationKind::reduce_scatter_v, .dtype = buffer.dtype(), .elements = buffer.elements(), .cuts_hash = hash_cuts(cuts)};
  const Reduction reduction{buffer.dtype(), result.dtype(), ReduceOperation::sum};
  const std::vector<int64_t> bytes = cuts_in_bytes(cuts, buffer.dtype());
  submit(stream, operation, {buffer, result},
         {[=](Exchange& exchange) { run_reduce_scatter_v(exchange, reduction, bytes_of(buffer), bytes, bytes_of(result), accumulate); },
          [=](SharedExchange& exchange) {
            shared_reduce_scatter_v(exchange, reduction, buffer, bytes, bytes_of(result), accumulate);
            return true;
          }});
}

void PeerCommunicator::all_to_all_v(Stream& stream, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive,
                                    std::span<const int64_t> receive_cuts) {
  check_all_to_all(send, send_cuts, receive, receive_cuts, rank(), size());
  submit(
      stream, {.kind = OperationKind::all_to_all_v, .dtype = send.dtype()}, {send, receive},
      {[send, receive, send_bytes = cuts_in_bytes(send_cuts, send.dtype()), receive_bytes = cuts_in_bytes(receive_cuts, receive.dtype())](
           Exchange& exchange) { run_all_to_all_v(exchange, bytes_of(send), send_bytes, bytes_of(receive), receive_bytes); },
       nullptr});
}

}  // namespace dmuon
