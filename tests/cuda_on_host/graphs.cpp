#include "cuda_on_host/graphs.h"

#include <algorithm>

#include "cuda_on_host/device_queue.h"
#include "cuda_on_host/errors.h"
#include "cuda_on_host/stream_queue.h"
#include "dmuon/core/text.h"

struct CUgraph_st {
  cuda_on_host::Graph graph;
};
struct CUgraphExec_st {
  cuda_on_host::Graph graph;
};

namespace cuda_on_host {
namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// One replay: its nodes in random order, as far as they may, one a call.
class Replay {
 public:
  explicit Replay(const Graph& graph) : nodes_(graph.nodes), over_(nodes_.size(), false) {}

  bool step() {
    std::vector<size_t> ready;
    for (size_t i = 0; i < nodes_.size(); ++i)
      if (!over_[i] && std::all_of(nodes_[i].after.begin(), nodes_[i].after.end(), [&](int n) { return over_[static_cast<size_t>(n)]; }))
        ready.push_back(i);
    if (ready.empty()) return true;
    const size_t first = DeviceQueue::only().random(ready.size());
    for (size_t k = 0; k < ready.size(); ++k) {
      const size_t i = ready[(first + k) % ready.size()];
      if (sticky_error() != cudaSuccess) return true;
      if (nodes_[i].work && !nodes_[i].work()) continue;
      over_[i] = true;
      return ++done_ == nodes_.size();
    }
    return false;
  }

 private:
  std::vector<GraphNode> nodes_;
  std::vector<bool> over_;
  size_t done_ = 0;
};

}  // namespace

int Capture::add(const std::string& name, std::function<bool()> work, const std::vector<int>& after) {
  graph.nodes.push_back({name, std::move(work), after});
  return static_cast<int>(graph.nodes.size()) - 1;
}

cudaError_t forbidden_in_capture(const char* function) {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  DeviceQueue& queue = DeviceQueue::only();
  const auto lock = queue.lock();
  cudaError_t error = cudaSuccess;
  for (const auto& stream : queue.streams(lock)) {
    if (!stream->capture || stream->capture->mode == cudaStreamCaptureModeRelaxed) continue;
    if (stream->capture->thread != std::this_thread::get_id() &&
        (stream->capture->mode == cudaStreamCaptureModeThreadLocal || thread_mode == cudaStreamCaptureModeThreadLocal))
      continue;
    stream->capture->invalid = true;
    error = cudaErrorStreamCaptureUnsupported;
  }
  return error == cudaSuccess ? error : remember(error, dmuon::text(function, " while a stream is captured"));
}

}  // namespace cuda_on_host

using namespace cuda_on_host;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  if (const cudaError_t error = call_error("cudaStreamBeginCapture"); error != cudaSuccess) return error;
  if (handle == nullptr) return remember(cudaErrorStreamCaptureUnsupported, "the default stream cannot be captured");
  DeviceQueue& queue = DeviceQueue::only();
  const auto stream = queue.stream_of(handle);
  const auto lock = queue.lock();
  if (stream->capture) return remember(cudaErrorIllegalState, "cudaStreamBeginCapture: the stream is captured already");
  stream->capture = std::make_shared<Capture>();
  stream->capture->origin = stream.get();
  stream->capture->mode = mode;
  stream->capture->thread = std::this_thread::get_id();
  stream->tail.clear();
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  *graph = nullptr;
  if (const cudaError_t error = call_error("cudaStreamEndCapture"); error != cudaSuccess) return error;
  DeviceQueue& queue = DeviceQueue::only();
  const auto stream = queue.stream_of(handle);
  const auto lock = queue.lock();
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return remember(cudaErrorIllegalState, "cudaStreamEndCapture: the stream is not captured");
  if (capture->origin != stream.get()) return remember(cudaErrorStreamCaptureUnmatched, "the capture began on another stream");
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id())
    return remember(cudaErrorStreamCaptureWrongThread, "the capture began on another thread");
  // Every piece of work that nothing comes after must be one that this stream comes after.
  std::vector<bool> followed(capture->graph.nodes.size(), false);
  for (const GraphNode& node : capture->graph.nodes)
    for (const int before : node.after) followed[static_cast<size_t>(before)] = true;
  for (const int last : stream->tail) followed[static_cast<size_t>(last)] = true;
  for (const auto& other : queue.streams(lock)) {
    if (other->capture != capture) continue;
    other->capture.reset();
    if (other != stream) other->tail.clear();
  }
  stream->tail.clear();
  capture->over = true;
  if (capture->invalid) return remember(cudaErrorStreamCaptureInvalidated, "a call during the capture was illegal");
  const auto loose = std::find(followed.begin(), followed.end(), false);
  if (loose != followed.end())
    return remember(cudaErrorStreamCaptureUnjoined,
                    dmuon::text("the captured stream does not wait for \"",
                                capture->graph.nodes[static_cast<size_t>(loose - followed.begin())].name, "\" of another one"));
  *graph = new CUgraph_st{std::move(capture->graph)};
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  DeviceQueue& queue = DeviceQueue::only();
  const auto stream = queue.stream_of(handle);
  const auto lock = queue.lock();
  *status = !stream->capture           ? cudaStreamCaptureStatusNone
            : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
  return sticky_error();
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t error = call_error("cudaGraphInstantiate"); error != cudaSuccess) return error;
  *executable = new CUgraphExec_st{graph->graph};
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return call_error("cudaGraphUpload"); }

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return queue_polled(stream, [replay = Replay(executable->graph)]() mutable { return replay.step(); });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes == nullptr) *count = graph->graph.nodes.size();
  return nodes == nullptr ? cudaSuccess : remember(cudaErrorNotSupported, "nodes of a graph are counted only");
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}

}  // extern "C"
