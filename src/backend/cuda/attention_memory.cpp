#include "backend/cuda/attention_memory.h"

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {

void require_attention_memory(const Launch& how, int head_width, bool bfloat16) {
  constexpr size_t everywhere = size_t{99} << 10;  // of sm_86 and sm_89, the least of sm_80 and above
  if (how.shared_bytes <= everywhere) return;
  int device = 0, most = 0;
  check_kernel(cudaGetDevice(&device), how);
  check_kernel(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), how);
  if (how.shared_bytes <= static_cast<size_t>(most)) return;
  throw DeviceError(text(how.name, ": heads of width ", head_width, " in ", bfloat16 ? "bfloat16" : "float32", " need ",
                         (how.shared_bytes + 1023) >> 10, " KiB of shared memory a block, and this device has ", most >> 10,
                         " KiB. Remedy: ",
                         bfloat16 ? "heads of width 128 or less (model.heads)"
                                  : "heads of width 64 or less (model.heads), or of 128 or less with "
                                    "\"distribution\": {\"compute_dtype\": \"bfloat16\"}",
                         ", or a device of sm_80, sm_90 or sm_100, whose blocks have at least 163 KiB"));
}

}  // namespace dmuon::cuda
