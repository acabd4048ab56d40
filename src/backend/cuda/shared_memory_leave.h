// Shared memory of a block beyond the 48 KiB that every kernel may have.
#pragma once

#include <cstddef>

#include "backend/cuda/cuda_error.h"

namespace dmuon::cuda {

// A kernel may have 48 KiB of shared memory, variables and dynamic memory together, unless it takes leave for more. One with more
// dynamic memory than this takes it: the rest is room for variables, whose size a launch does not know.
constexpr size_t dynamic_without_leave = 32 * 1024;
// Gives `kernel` leave for all the shared memory that a block of the current device can have. The same for every launch, so that
// threads may launch one kernel at a time with different sizes. DeviceError naming the kernel.
void take_all_shared_memory(const void* kernel, const Launch& how);

}  // namespace dmuon::cuda
