#include "backend/cuda/update_graphs.h"

#include <exception>

#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_error.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/random.h"

namespace dmuon::cuda {
namespace {

constexpr size_t most_graphs = 2048;  // addresses that never repeat would fill the map
// What the driver keeps of a recorded kernel, on the host and on the device: its arguments are up to 4 KiB of it. An estimate.
constexpr int64_t bytes_of_kernel = 8192;

std::map<std::string, KernelCost> difference(const std::map<std::string, KernelCost>& after,
                                             const std::map<std::string, KernelCost>& before) {
  std::map<std::string, KernelCost> result;
  for (const auto& [name, cost] : after) {
    const auto old = before.find(name);
    const KernelCost base = old == before.end() ? KernelCost{} : old->second;
    if (cost.calls > base.calls) result[name] = {cost.calls - base.calls, cost.flops - base.flops, 0.0};
  }
  return result;
}

}  // namespace

UpdateGraphs::~UpdateGraphs() {
  for (auto& [key, graph] : graphs_)
    if (graph.executable) cudaGraphExecDestroy(graph.executable);
}

void UpdateGraphs::drop_oldest(Stream& stream, const Graph& current) {
  bool waited = false;
  while (counts_.kept_bytes > most_bytes_ || graphs_.size() > most_graphs) {
    auto oldest = graphs_.end();
    for (auto it = graphs_.begin(); it != graphs_.end(); ++it)
      if (&it->second != &current && (oldest == graphs_.end() || it->second.last_used < oldest->second.last_used)) oldest = it;
    if (oldest == graphs_.end()) return;  // one that is too large alone is kept while it is used
    if (oldest->second.executable) {
      if (!waited) stream.synchronize();
      waited = true;
      cudaGraphExecDestroy(oldest->second.executable);
      counts_.kept_bytes -= oldest->second.bytes;
      ++counts_.dropped;
    }
    graphs_.erase(oldest);
  }
}

void UpdateGraphs::run(Stream& stream, uint64_t key, std::span<const Tensor> tensors, const std::function<void()>& queue) {
  if (!on_ || backend_.shape_only() || backend_.profiling()) return queue();
  const cudaStream_t handle = handle_of(stream);
  uint64_t hash = mix64(key ^ mix64(reinterpret_cast<uintptr_t>(handle)));
  for (const Tensor& tensor : tensors)
    hash = mix64(mix64(hash ^ reinterpret_cast<uintptr_t>(tensor.raw())) ^ static_cast<uint64_t>(tensor.bytes()));
  Graph& graph = graphs_[hash];
  graph.last_used = ++uses_;
  drop_oldest(stream, graph);
  if (!graph.seen || graph.impossible) {
    graph.seen = true;
    return queue();
  }
  // Orders the stream behind whatever had the tensors' memory before, which a recording could not do.
  for (const Tensor& tensor : tensors) backend_.use(stream, tensor);
  if (!graph.executable) {
    record(stream, graph, queue);
    if (!graph.executable) return queue();
  } else {
    for (const Tensor& tensor : graph.scratch) backend_.use(stream, tensor);
    backend_.add_costs(graph.costs);
    ++counts_.replayed;
  }
  check(cudaGraphLaunch(graph.executable, handle), "start of a recorded update");
}

void UpdateGraphs::record(Stream& stream, Graph& graph, const std::function<void()>& queue) {
  const cudaStream_t handle = handle_of(stream);
  const std::map<std::string, KernelCost> before = backend_.costs();
  cudaGraph_t recorded = nullptr;
  graph.impossible = true;
  if (cudaStreamBeginCapture(handle, cudaStreamCaptureModeRelaxed) != cudaSuccess) {
    cudaGetLastError();
    return;
  }
  backend_.begin_capture(graph.scratch);
  bool queued = true;
  std::exception_ptr thrown;
  try {
    queue();
  } catch (const DeviceError&) {
    queued = false;  // queued directly next, it says what is wrong
  } catch (...) {
    queued = false;
    thrown = std::current_exception();  // the capture ends before
  }
  backend_.end_capture();
  const bool ended = cudaStreamEndCapture(handle, &recorded) == cudaSuccess;
  if (queued && ended && recorded && cudaGraphInstantiate(&graph.executable, recorded, 0) == cudaSuccess) {
    graph.impossible = false;
    graph.costs = difference(backend_.costs(), before);
    ++counts_.recorded;
    for (const Tensor& tensor : graph.scratch) graph.bytes += tensor.bytes();
    for (const auto& [name, cost] : graph.costs) graph.bytes += cost.calls * bytes_of_kernel;
    counts_.kept_bytes += graph.bytes;
  } else {
    cudaGetLastError();
    graph.executable = nullptr;
    graph.scratch.clear();
    // What was counted is queued, and counted, once more.
    std::map<std::string, KernelCost> uncounted = difference(backend_.costs(), before);
    for (auto& [name, cost] : uncounted) cost.calls = -cost.calls, cost.flops = -cost.flops;
    backend_.add_costs(uncounted);
  }
  if (recorded) cudaGraphDestroy(recorded);
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace dmuon::cuda
