// What the NCCL groups of a process share, and how they end together.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "backend/cuda/cuda_backend.h"

namespace dmuon::nccl {

class NcclGroup;

// What all groups of a process share.
class Session {
 public:
  // The thread that makes it is the one that may enter operations. `check_calls`: compare every operation with the other ranks' before
  // it starts.
  Session(cuda::CudaBackend& used, bool check) : backend(used), check_calls(check) {}

  cuda::CudaBackend& backend;
  const std::thread::id thread = std::this_thread::get_id();
  const bool check_calls;

  void add(const std::shared_ptr<NcclGroup>& group);
  // All groups and `group`, which need not be among them. `why` follows "was aborted" in what they say from then on; the first one
  // counts. Returns when NCCL has let all of them go, in which it waits for the device: no mutex may be held. Thread-safe.
  void abort_all(NcclGroup& group, const std::string& why);

 private:
  std::mutex mutex_;
  std::vector<std::weak_ptr<NcclGroup>> groups_;
};

}  // namespace dmuon::nccl
