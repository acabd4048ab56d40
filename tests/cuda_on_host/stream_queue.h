// Work on streams, for the stand-ins of other libraries (cuBLAS, NCCL) and of the runtime itself.
//
// All work of a process runs on one thread, the device's. It begins when a host thread waits for something or the oldest work
// is a millisecond old, takes streams in random order, and each stream's work in its own order, only as far as events allow:
// work that lacks the wait for an event soon runs too early. The seed is CUDA_ON_HOST_SEED (default 1).
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <string>

namespace cuda_on_host {

// Appends work that is over when `poll` returns true. It is called again and again until then while other streams go on, on
// the device's thread, so it must not wait. While the stream is captured the work becomes part of the graph, which copies
// `poll` for every replay: what it remembers between calls must be held by value. Returns the sticky error of earlier work.
cudaError_t queue_polled(cudaStream_t stream, std::function<bool()> poll);
// The same for work that is over when it returns. `name` is for reports.
cudaError_t queue_work(cudaStream_t stream, const std::string& name, std::function<void()> work);

// Ends the running work with an error that every later call of the runtime returns, and that its text describes.
void fail_device(cudaError_t error, const std::string& text);
// That error; cudaSuccess: none.
cudaError_t sticky_error();

// True on the device's thread: in host functions and polls.
bool on_device_thread();

}  // namespace cuda_on_host
