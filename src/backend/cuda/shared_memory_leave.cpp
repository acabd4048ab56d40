#include "backend/cuda/shared_memory_leave.h"

#include <mutex>
#include <set>
#include <utility>

namespace dmuon::cuda {

void take_all_shared_memory(const void* kernel, const Launch& how) {
  // What the runtime already knows, kept because asking it costs about as much as a launch.
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> taken;
  int device = 0, most = 0;
  check_kernel(cudaGetDevice(&device), how);
  const std::lock_guard lock(mutex);
  if (taken.contains({kernel, device})) return;
  cudaFuncAttributes attributes{};
  check_kernel(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), how);
  check_kernel(cudaFuncGetAttributes(&attributes, kernel), how);
  check_kernel(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most - static_cast<int>(attributes.sharedSizeBytes)), how);
  taken.insert({kernel, device});
}

}  // namespace dmuon::cuda
