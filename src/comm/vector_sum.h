// The hot loop of reductions.
#pragma once

#include "comm/reduction.h"

namespace dmuon {

constexpr int64_t vector_sum_tile = 64;

// What reduce_in_order does, for sums of float32 or bfloat16 and a multiple of vector_sum_tile elements: one pass over
// all sources and targets, with AVX2 where the processor has it. The bits are those of the plain loop.
void sum_vectors(const Reduction& reduction, std::span<const void* const> sources, int64_t elements, void* result, bool accumulate,
                 std::span<void* const> copies);

}  // namespace dmuon
