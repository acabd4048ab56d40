// Element-wise reduction in the order of the sources: ((s0 + s1) + s2) + …, hence independent of timing and transport.
#pragma once

#include <cstdint>
#include <span>

#include "dmuon/comm/communicator.h"
#include "dmuon/core/dtype.h"

namespace dmuon {

// Throws ShapeError naming the operation unless the dtype can be reduced: float32, float64, bfloat16, float16 (both
// summed in float32 and rounded once), int64, int32, int16, int8; uint8 only maximum and minimum. Integer sums wrap
// modulo 2^width, the same in every element and on every path (MPI's own saturate in some elements and wrap in others):
// an int8 sum of ±1 holds 127 ranks, an int16 sum 32,767.
void check_reducible(const char* name, DType dtype, ReduceOperation operation);

struct Reduction {
  DType dtype = DType::float32;   // of the sources
  DType result = DType::float32;  // the same, or float32 for bfloat16
  ReduceOperation operation = ReduceOperation::sum;
};

// result[i] = reduction of sources[.][i], or, with `accumulate`, result[i] + that reduction. `result` may be one of
// the sources when it has their dtype, and so may `copies`, further places that receive the result. Maximum and minimum
// return NaN if any source is NaN.
void reduce_in_order(const Reduction& reduction, std::span<const void* const> sources, int64_t elements, void* result, bool accumulate,
                     std::span<void* const> copies = {});

}  // namespace dmuon
