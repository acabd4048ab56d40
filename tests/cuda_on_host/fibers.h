// Execution of one kernel: blocks one after another, in forward, reverse or random order, and so the threads of a block.
//
// A thread runs as a plain call until it has to wait for others; then the fiber it ran in waits with it and another fiber goes
// on with the threads that have not begun. A kernel without barriers so costs one call a thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string>

namespace cuda_on_host {

struct Kernel {
  std::string name;
  dim3 grid, block;
  size_t shared_bytes = 0;  // dynamic
  size_t shared_limit = 0;  // of variables and dynamic memory together
  std::function<void()> thread;
};

enum class Order { forward, reverse, random };

// What is wrong with a kernel and the error that a device would give; no error when nothing is.
struct Report {
  cudaError_t error = cudaSuccess;
  std::string text;
};

// Runs the kernel to its end on the calling thread, which must be the same one every time. It ends early when its threads
// wait for each other at different places, when a lane exchanges values with lanes that are not there, or at a trap; then the
// fibers that waited are dropped with what they held on their stacks.
Report run_kernel(const Kernel& kernel, Order order, uint64_t seed);

// Ends the running kernel with this report, from within one of its threads.
[[noreturn]] void fail_kernel(cudaError_t error, std::string what);
// The kernel that runs, its block and thread, for reports.
std::string where();
// Position of the calling thread in its block and how many barriers of its block and its warp it has passed: two accesses of
// different threads are ordered when the block's count differs, or in the same warp the warp's.
struct Position {
  int thread = 0;
  uint32_t block_barriers = 0, warp_barriers = 0;
};
Position position();
// True inside a kernel, on the thread that runs it.
bool in_kernel();
// The stacks of all fibers.
bool on_fiber_stack(const void* address);

// Switches of fibers since the process began.
uint64_t fiber_switches();

}  // namespace cuda_on_host
