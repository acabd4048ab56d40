// Reductions of the terms of several ranks, in the order of the ranks.
#pragma once

#include <cstdint>

#include "backend/cuda/cuda_backend.h"

namespace dmuon::cuda {

enum class RankOperation : uint8_t { sum, maximum, minimum };

// result[i] = reduction of the ranks' terms i in rank order, ((t0 + t1) + t2) + …; with `accumulate` result[i] + that.
// Floating types of 16 bits are added in float32 and rounded once (to nearest even); integer sums wrap at their width;
// maximum and minimum are NaN if a term is. The same bits as the reductions of the CPU's collectives, NaN payloads aside.
struct RankReduction {
  Tensor own;     // the terms of `rank`; may be `result` itself
  Tensor terms;   // [ranks, stride]: those of all ranks, of a row the first own.elements(); row `rank` is not read
  Tensor result;  // as many elements as `own`; its dtype, or float32 for bfloat16
  int64_t stride = 0;
  int rank = 0, ranks = 1;
  RankOperation operation = RankOperation::sum;
  bool accumulate = false;
};
void reduce_in_rank_order(CudaBackend& backend, Stream& stream, const RankReduction& arguments);

}  // namespace dmuon::cuda
