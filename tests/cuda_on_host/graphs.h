// Stream captures and the graphs they make.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace cuda_on_host {

class StreamState;

struct GraphNode {
  std::string name;
  std::function<bool()> work;
  std::vector<int> after;
};

struct Graph {
  std::vector<GraphNode> nodes;
};

// One capture, which streams join by waiting for its events. Guarded by the queue's lock.
struct Capture {
  Graph graph;
  const StreamState* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool over = false, invalid = false;

  // Returns the node's number.
  int add(const std::string& name, std::function<bool()> work, const std::vector<int>& after);
};

// The error of a call that may not be made while streams are captured (allocation, synchronisation of the device), which also
// ends the captures that forbid it: those in global mode on any thread, in thread-local mode on the calling one, unless the
// calling thread's mode (cudaThreadExchangeStreamCaptureMode) is relaxed.
cudaError_t forbidden_in_capture(const char* function);

}  // namespace cuda_on_host
