#include "comm/nccl/transfers.h"

#include <algorithm>
#include <optional>

#include "backend/cuda/rank_reduction.h"
#include "comm/nccl/staging.h"
#include "dmuon/core/checked.h"

namespace dmuon::nccl {
namespace {

int64_t length(std::span<const int64_t> cuts, int rank) { return cuts[static_cast<size_t>(rank) + 1] - cuts[static_cast<size_t>(rank)]; }

Tensor segment(const Tensor& buffer, std::span<const int64_t> cuts, int rank) {
  return buffer.flat().flat(cuts[static_cast<size_t>(rank)], length(cuts, rank));
}

int64_t longest(std::span<const int64_t> cuts) {
  int64_t most = 0;
  for (size_t r = 0; r + 1 < cuts.size(); ++r) most = std::max(most, cuts[r + 1] - cuts[r]);
  return most;
}

bool equal(std::span<const int64_t> cuts) {
  for (size_t r = 0; r + 1 < cuts.size(); ++r)
    if (cuts[r + 1] - cuts[r] != cuts[1] - cuts[0]) return false;
  return true;
}

// Where order does not matter NCCL may reduce by itself. Its sums of integers wrap.
std::optional<ncclDataType_t> exact_type(DType dtype) {
  switch (dtype) {
    case DType::int64:
      return ncclInt64;
    case DType::int32:
      return ncclInt32;
    case DType::int8:
      return ncclInt8;
    case DType::uint8:
      return ncclUint8;
    default:
      return std::nullopt;
  }
}

ncclRedOp_t nccl_operation(ReduceOperation operation) {
  return operation == ReduceOperation::sum ? ncclSum : operation == ReduceOperation::maximum ? ncclMax : ncclMin;
}

cuda::RankOperation rank_operation(ReduceOperation operation) {
  return operation == ReduceOperation::sum       ? cuda::RankOperation::sum
         : operation == ReduceOperation::maximum ? cuda::RankOperation::maximum
                                                 : cuda::RankOperation::minimum;
}

void send(NcclGroup& group, const Tensor& data, int peer, ncclComm_t comm, cudaStream_t handle) {
  if (data.bytes() > 0) group.check(ncclSend(data.raw(), static_cast<size_t>(data.bytes()), ncclInt8, peer, comm, handle));
}

void receive(NcclGroup& group, const Tensor& data, int peer, ncclComm_t comm, cudaStream_t handle) {
  if (data.bytes() > 0) group.check(ncclRecv(data.raw(), static_cast<size_t>(data.bytes()), ncclInt8, peer, comm, handle));
}

// In place: equal parts of `buffer`, one a rank.
void gather_equal(NcclGroup& group, Stream& stream, const Tensor& buffer) {
  const int64_t bytes = buffer.bytes() / group.group().size();
  if (bytes == 0) return;
  group.call(stream, "nccl all_gather", {buffer}, [&](ncclComm_t comm, cudaStream_t handle) {
    char* all = static_cast<char*>(buffer.raw());
    group.check(ncclAllGather(all + group.group().rank() * bytes, all, static_cast<size_t>(bytes), ncclInt8, comm, handle));
  });
}

void gather_by_broadcasts(NcclGroup& group, Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts) {
  group.call(stream, "nccl broadcasts", {buffer}, [&](ncclComm_t comm, cudaStream_t handle) {
    for (int root = 0; root < group.group().size(); ++root) {
      const Tensor part = segment(buffer, cuts, root);
      if (part.bytes() > 0)
        group.check(ncclBroadcast(part.raw(), part.raw(), static_cast<size_t>(part.bytes()), ncclInt8, root, comm, handle));
    }
  });
}

void gather_directly(NcclGroup& group, Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts) {
  group.call(stream, "nccl gather", {buffer}, [&](ncclComm_t comm, cudaStream_t handle) {
    const int rank = group.group().rank();
    for (int peer = 0; peer < group.group().size(); ++peer) {
      if (peer == rank) continue;
      send(group, segment(buffer, cuts, rank), peer, comm, handle);
      receive(group, segment(buffer, cuts, peer), peer, comm, handle);
    }
  });
}

void gather_padded(NcclGroup& group, Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts) {
  const int size = group.group().size(), rank = group.group().rank();
  const int64_t share = round_up(longest(cuts), piece_alignment);
  cuda::CudaBackend& backend = group.backend();
  const Tensor staging = backend.allocate({size * share}, buffer.dtype(), MemoryCategory::communication, "a padded all-gather");
  const auto place = [&](int r) { return staging.flat(r * share, length(cuts, r)); };
  // What lies behind a short segment travels too; it is defined so that nobody wonders about it.
  backend.zero(stream, staging.flat(rank * share, share));
  if (length(cuts, rank) > 0) backend.copy(stream, segment(buffer, cuts, rank), place(rank));
  gather_equal(group, stream, staging);
  for (int r = 0; r < size; ++r)
    if (r != rank && length(cuts, r) > 0) backend.copy(stream, place(r), segment(buffer, cuts, r));
}

}  // namespace

bool gathered_whole(const Tensor& data) { return data.bytes() <= int64_t{16} << 10; }

void broadcast(NcclGroup& group, Stream& stream, const Tensor& data, int root) {
  if (data.bytes() == 0) return;
  group.call(stream, "nccl broadcast", {data}, [&](ncclComm_t comm, cudaStream_t handle) {
    group.check(ncclBroadcast(data.raw(), data.raw(), static_cast<size_t>(data.bytes()), ncclInt8, root, comm, handle));
  });
}

void all_gather_v(NcclGroup& group, Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, GatherForm form) {
  if (longest(cuts) == 0) return;
  if (equal(cuts)) return gather_equal(group, stream, buffer.flat().flat(cuts.front(), cuts.back() - cuts.front()));
  if (form == GatherForm::padded) return gather_padded(group, stream, buffer, cuts);
  if (form == GatherForm::all_gather) return gather_directly(group, stream, buffer, cuts);
  gather_by_broadcasts(group, stream, buffer, cuts);
}

void reduce_scatter_v(NcclGroup& group, Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result,
                      ReduceOperation operation, bool accumulate) {
  const int size = group.group().size(), rank = group.group().rank();
  const int64_t most = longest(cuts), own = length(cuts, rank);
  if (most == 0) return;
  const auto [piece, stride] = reduction_pieces(size, most, own, size_of(buffer.dtype()));
  Tensor staging;
  if (own > 0) staging = group.backend().allocate({size * stride}, buffer.dtype(), MemoryCategory::communication, "terms of a reduction");
  for (int64_t first = 0; first < most; first += piece) {
    const auto part = [&](int r) {
      const int64_t begin = std::min(first, length(cuts, r));
      return segment(buffer, cuts, r).flat(begin, std::min(piece, length(cuts, r) - begin));
    };
    const Tensor mine = part(rank);
    group.call(stream, "nccl terms", {buffer, staging}, [&](ncclComm_t comm, cudaStream_t handle) {
      for (int peer = 0; peer < size; ++peer) {
        if (peer == rank) continue;
        send(group, part(peer), peer, comm, handle);
        if (mine.elements() > 0) receive(group, staging.flat(peer * stride, mine.elements()), peer, comm, handle);
      }
    });
    if (mine.elements() > 0)
      cuda::reduce_in_rank_order(
          group.backend(), stream,
          {mine, staging, result.flat().flat(first, mine.elements()), stride, rank, size, rank_operation(operation), accumulate});
  }
}

void all_reduce(NcclGroup& group, Stream& stream, const Tensor& data, ReduceOperation operation) {
  const int size = group.group().size(), rank = group.group().rank();
  const int64_t elements = data.elements();
  if (elements == 0) return;
  if (gathered_whole(data)) {
    const Tensor staging = group.backend().allocate({size * elements}, data.dtype(), MemoryCategory::communication, "an all-reduce");
    group.backend().copy(stream, data.flat(), staging.flat(rank * elements, elements));
    gather_equal(group, stream, staging);
    return cuda::reduce_in_rank_order(group.backend(), stream,
                                      {data.flat(), staging, data.flat(), elements, rank, size, rank_operation(operation), false});
  }
  if (const auto type = exact_type(data.dtype())) {
    group.call(stream, "nccl all_reduce", {data}, [&](ncclComm_t comm, cudaStream_t handle) {
      group.check(ncclAllReduce(data.raw(), data.raw(), static_cast<size_t>(elements), *type, nccl_operation(operation), comm, handle));
    });
    return;
  }
  std::vector<int64_t> cuts;
  const int64_t share = round_up(divide_up(elements, size), piece_alignment);
  for (int r = 0; r <= size; ++r) cuts.push_back(std::min(elements, r * share));
  reduce_scatter_v(group, stream, data, cuts, segment(data, cuts, rank), operation, false);
  all_gather_v(group, stream, data, cuts, GatherForm::automatic);
}

void all_to_all_v(NcclGroup& group, Stream& stream, const Tensor& send_buffer, std::span<const int64_t> send_cuts,
                  const Tensor& receive_buffer, std::span<const int64_t> receive_cuts) {
  const int rank = group.group().rank();
  const Tensor from = segment(send_buffer, send_cuts, rank), to = segment(receive_buffer, receive_cuts, rank);
  if (from.elements() > 0 && from.raw() != to.raw()) group.backend().copy(stream, from, to);
  group.call(stream, "nccl all_to_all", {send_buffer, receive_buffer}, [&](ncclComm_t comm, cudaStream_t handle) {
    for (int peer = 0; peer < group.group().size(); ++peer) {
      if (peer == rank) continue;
      send(group, segment(send_buffer, send_cuts, peer), peer, comm, handle);
      receive(group, segment(receive_buffer, receive_cuts, peer), peer, comm, handle);
    }
  });
}

}  // namespace dmuon::nccl
