#include "backend/cuda/cuda_error.h"

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {

void check(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  throw DeviceError(text(what, ": ", cudaGetErrorName(status), ": ", cudaGetErrorString(status)));
}

void check_kernel(cudaError_t status, const Launch& l) {
  if (status == cudaSuccess) return;
  check(status, text("kernel ", l.name, ", grid ", l.grid.x, "x", l.grid.y, "x", l.grid.z, " of ", l.block.x, "x", l.block.y, "x",
                     l.block.z, " threads, ", l.shared_bytes, " bytes of dynamic shared memory"));
}

}  // namespace dmuon::cuda
