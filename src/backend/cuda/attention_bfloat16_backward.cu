#include "backend/cuda/attention_backward.h"

namespace dmuon::cuda {

// Narrower tiles of scores for deep heads, whose two sums take up to 128 registers of a thread.
void attention_backward_bfloat16(const AttentionTask<__nv_bfloat16>& a, cudaStream_t stream) {
  if (a.D <= 32) return launch_attention_backward<MmaTiles<32, 64>>(a, stream);
  if (a.D <= 64) return launch_attention_backward<MmaTiles<64, 64>>(a, stream);
  if (a.D <= 96) return launch_attention_backward<MmaTiles<96, 32>>(a, stream);
  if (a.D <= 128) return launch_attention_backward<MmaTiles<128, 32>>(a, stream);
  launch_attention_backward<FmaTiles<__nv_bfloat16, 256, 2, 2>>(a, stream);
}

}  // namespace dmuon::cuda
