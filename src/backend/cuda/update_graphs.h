// Work of a stream that is queued again and again, recorded once and replayed as a CUDA graph.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dmuon/backend/device_updates.h"

namespace dmuon::cuda {

class CudaBackend;

// The contract is that of DeviceUpdates::replay. Work that cannot be recorded is queued directly ever after. A graph keeps the
// scratch that its kernels asked for while it was recorded; what they cost is counted again at every replay.
class UpdateGraphs {
 public:
  explicit UpdateGraphs(CudaBackend& backend) : backend_(backend) {}
  ~UpdateGraphs();
  UpdateGraphs(const UpdateGraphs&) = delete;
  UpdateGraphs& operator=(const UpdateGraphs&) = delete;

  void run(Stream& stream, uint64_t key, std::span<const Tensor> tensors, const std::function<void()>& queue);
  void use(bool on) { on_ = on; }
  DeviceUpdates::GraphCounts counts() const { return counts_; }

 private:
  struct Graph {
    bool seen = false, impossible = false;
    cudaGraphExec_t executable = nullptr;
    std::vector<Tensor> scratch;
    std::map<std::string, KernelCost> costs;
  };
  void record(Stream& stream, Graph& graph, const std::function<void()>& queue);
  void clear();

  CudaBackend& backend_;
  bool on_ = true;
  DeviceUpdates::GraphCounts counts_;
  std::map<uint64_t, Graph> graphs_;  // by a hash of key, stream and addresses
};

}  // namespace dmuon::cuda
