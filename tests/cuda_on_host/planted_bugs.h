// Kernels with one bug each, and correct counterparts; the stand-in's own tests expect a report of each bug.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace planted {

// All start one kernel on `stream` and return. `y` has room for `count` elements unless the name says otherwise.

// y[i] = the sum of x over the i-th block of 256.
void block_sums(cudaStream_t stream, const float* x, float* y, int64_t count);
void block_sums_without_barrier(cudaStream_t stream, const float* x, float* y, int64_t count);
// A barrier inside a branch that half of the threads take, and two barriers of which each half meets its own.
void barrier_in_branch(cudaStream_t stream, float* y);
void two_barriers(cudaStream_t stream, float* y);
// Reverses each block of 256 in shared memory; the bug reads before all have written, or writes again before all have read.
void reverse(cudaStream_t stream, float* y, int64_t count);
void reverse_twice_in_place(cudaStream_t stream, float* y, int64_t count);
// y[i] = x[i]; the bugs are a test against count + 1, reading x[-1], four elements at once where fewer are left, and shared
// memory one element too short.
void copy(cudaStream_t stream, const float* x, float* y, int64_t count);
void copy_one_too_many(cudaStream_t stream, const float* x, float* y, int64_t count);
void copy_from_before(cudaStream_t stream, const float* x, float* y, int64_t count);
void copy_by_four(cudaStream_t stream, const float* x, float* y, int64_t count);
void copy_through_short_shared(cudaStream_t stream, const float* x, float* y, int64_t count);
// Adds up shared memory of which one element was never written.
void sum_of_unwritten_shared(cudaStream_t stream, float* y);
// One block too few, and one more than the kernel without a test of its bounds expects.
void copy_grid_too_small(cudaStream_t stream, const float* x, float* y, int64_t count);
void copy_grid_too_large(cudaStream_t stream, const float* x, float* y, int64_t count);
// y[0..31] = the sum over a warp; the bugs are a mask without the upper lanes, and lanes of which only half come.
void warp_sum(cudaStream_t stream, float* y);
void warp_sum_with_short_mask(cudaStream_t stream, float* y);
void warp_sum_of_half(cudaStream_t stream, float* y);
// x[i] += value. What a chain of kernels on several streams is made of.
void add(cudaStream_t stream, float* x, float value, int64_t count);
// y[i] += x[i]
void accumulate(cudaStream_t stream, const float* x, float* y, int64_t count);
void with_threads(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes);
// A kernel with 256 bytes of shared variables beside dynamic memory; the bug is to start it without asking leave for more than
// 48 KiB of both together.
void beside_variables(cudaStream_t stream, size_t shared_bytes);
void beside_variables_without_leave(cudaStream_t stream, size_t shared_bytes);

}  // namespace planted
