// The collectives as NCCL calls and kernels, in the order of one stream. Cuts in elements; arguments are checked already.
//
//   broadcast          ncclBroadcast
//   all_gather_v       equal segments: ncclAllGather, whatever the form. Others:
//                        automatic, broadcasts   one ncclBroadcast a segment, in one group
//                        all_gather              every segment straight to every rank, sends and receives in one group
//                        padded                  staged at equal length, ncclAllGather, copied out
//   reduce_scatter_v   every segment straight to its owner in pieces (staging is bounded), who adds in rank order
//   all_reduce         up to 16 KiB: gathered everywhere and reduced locally. Above, int8, int32, int64 and uint8:
//                      ncclAllReduce; others: reduce_scatter_v over equal parts, then all_gather_v
//   all_to_all_v       sends and receives in one group, the own segment as a copy
//
// int16, which NCCL does not know, is reduced by the kernel; where nothing is added, elements travel as bytes. Empty segments
// make no call. Every function is the body of one NcclGroup::enter.
#pragma once

#include <span>

#include "comm/nccl/nccl_group.h"

namespace dmuon::nccl {

void broadcast(NcclGroup& group, Stream& stream, const Tensor& data, int root);
void all_gather_v(NcclGroup& group, Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, GatherForm form);
void reduce_scatter_v(NcclGroup& group, Stream& stream, const Tensor& buffer, std::span<const int64_t> cuts, const Tensor& result,
                      ReduceOperation operation, bool accumulate);
// Whether an all-reduce of it is gathered everywhere.
bool gathered_whole(const Tensor& data);
void all_reduce(NcclGroup& group, Stream& stream, const Tensor& data, ReduceOperation operation);
void all_to_all_v(NcclGroup& group, Stream& stream, const Tensor& send, std::span<const int64_t> send_cuts, const Tensor& receive,
                  std::span<const int64_t> receive_cuts);

}  // namespace dmuon::nccl
