#include "comm/peer_communicator.h"

#include "comm/arguments.h"
#include "comm/collectives.h"
#include "comm/exchange.h"
#include "comm/reduction.h"
#include "dmuon/backend/backend.h"

namespace dmuon {
namespace {

char* bytes_of(const Tensor& tensor) { return static_cast<char*>(tensor.raw()); }

}  // namespace

void PeerCommunicator::submit(Stream& stream, Operation operation, std::vector<Tensor> tensors, std::function<void(Exchange&)> body) {
  operation.sequence = group_->next_sequence();
  stream.submit([group = group_, operation, tensors = std::move(tensors), body = std::move(body)] {
    group->check();
    body(*std::make_shared<Exchange>(*group, operation, tensors));
  });
}

Tensor PeerCommunicator::allocate(Backend& backend, const Shape& shape, DType dtype, MemoryCategory category, std::string_view name) {
  return backend.allocate(shape, dtype, category, name);
}

void PeerCommunicator::barrier(Stream& stream) {
  submit(stream, {.kind = OperationKind::barrier}, {}, [](Exchange& exchange) { run_barrier(exchange); });
}

void PeerCommunicator::broadcast(Stream& stream, const Tensor& data, int root) {
  check_root("broadcast", root, size());
  submit(stream, {.kind = OperationKind::broadcast, .dtype = data.dtype(), .root = root, .elements = data.elements()}, {data},
         [data, root](Exchange& exchange) { run_broadcast(exchange, bytes_of(data), data.bytes(), root); });
}

void PeerCommunicator::all_reduce(Stream& stream, const Tensor& data, ReduceOperation operation) {
  check_reducible("all_reduce", data.dtype(), operation);
  submit(stream, {.kind = OperationKind::all_reduce, .dtype = data.dtype(), .reduction = operation, .elements = data.elements()}, {data},
         [data, operation](Exchange& exchange) { run_all_reduce(exchange, data.dtype(), operation, bytes_of(data), data.elements()); });
}

void PeerCommunicator::all_gather_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, GatherForm form) {
  check_cuts("all_gather_v", cuts, size(), buffer.elements());
  submit(stream,
         {.kind = OperationKind::all_gather_v,
          .dtype = buffer.dtype(),
          .root = static_cast<int>(form),
          .elements = buffer.elements(),
          .cuts_hash = hash_cuts(cuts)},
         {buffer}, [buffer, form, cuts = cuts_in_bytes(cuts, buffer.dtype())](Exchange& exchange) {
           run_all_gather_v(exchange, bytes_of(buffer), cuts, form);
         });
}

void PeerCommunicator::reduce_scatter_v(Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result,
                                        bool accumulate) {
  check_reduce_scatter(buffer, cuts, result, rank(), size());
  check_reducible("reduce_scatter_v", buffer.dtype(), ReduceOperation::sum);
  submit(stream,
         {.kind = OperationKind::reduce_scatter_v, .dtype = buffer.dtype(), .elements = buffer.elements(), .cuts_hash = hash_cuts(cuts)},
         {buffer, result}, [buffer, result, accumulate, cuts = cuts_in_bytes(cuts, buffer.dtype())](Exchange& exchange) {
           const Reduction reduction{buffer.dtype(), result.dtype(), ReduceOperation::sum};
           run_reduce_scatter_v(exchange, reduction, bytes_of(buffer), cuts, bytes_of(result), accumulate);
         });
}

void PeerCommunicator::all_to_all_v(Stream& stream, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive,
                                    std::span<const int64_t> receive_cuts) {
  check_all_to_all(send, send_cuts, receive, receive_cuts, rank(), size());
  submit(stream, {.kind = OperationKind::all_to_all_v, .dtype = send.dtype()}, {send, receive},
         [send, receive, send_bytes = cuts_in_bytes(send_cuts, send.dtype()), receive_bytes = cuts_in_bytes(receive_cuts, receive.dtype())](
             Exchange& exchange) { run_all_to_all_v(exchange, bytes_of(send), send_bytes, bytes_of(receive), receive_bytes); });
}

}  // namespace dmuon
