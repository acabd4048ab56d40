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
// scratch that its kernels asked for while it was recorded; what they cost is counted again at every replay. All graphs together stay
// within a limit of bytes: the ones used longest ago are dropped, and recorded anew when they come again.
class UpdateGraphs {
 public:
  explicit UpdateGraphs(CudaBackend& backend) : backend_(backend) {}
  ~UpdateGraphs();
  UpdateGraphs(const UpdateGraphs&) = delete;
  UpdateGraphs& operator=(const UpdateGraphs&) = delete;

  void run(Stream& stream, uint64_t key, std::span<const Tensor> tensors, const std::function<void()>& queue);
  void use(bool on) { on_ = on; }
  void limit(int64_t bytes) { most_bytes_ = bytes; }
  const DeviceUpdates::GraphCounts& counts() const { return counts_; }

 private:
  struct Graph {
    bool seen = false, impossible = false;
    cudaGraphExec_t executable = nullptr;
    std::vector<Tensor> scratch;
    std::map<std::string, KernelCost> costs;
    int64_t bytes = 0, last_used = 0;
  };
  void record(Stream& stream, Graph& graph, const std::function<void()>& queue);
  // Makes room for one more, on a stream that may still run some of them.
  void drop_oldest(Stream& stream, const Graph& current);

  CudaBackend& backend_;
  bool on_ = true;
  int64_t most_bytes_ = int64_t{512} << 20;
  int64_t uses_ = 0;
  DeviceUpdates::GraphCounts counts_;
  std::map<uint64_t, Graph> graphs_;  // by a hash of key, stream and addresses
};

}  // namespace dmuon::cuda
