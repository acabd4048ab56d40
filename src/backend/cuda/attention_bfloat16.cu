#include "backend/cuda/attention_forward.h"

namespace dmuon::cuda {

// Heads beyond 128 go without tensor cores: their sums would not fit into the registers of one block.
void attention_forward_bfloat16(const AttentionForwardTask<__nv_bfloat16>& a, cudaStream_t stream) {
  if (a.D <= 32) return launch_attention_forward<MmaTiles<32, 64>>(a, stream);
  if (a.D <= 64) return launch_attention_forward<MmaTiles<64, 64>>(a, stream);
  if (a.D <= 96) return launch_attention_forward<MmaTiles<96, 64>>(a, stream);
  if (a.D <= 128) return launch_attention_forward<MmaTiles<128, 64>>(a, stream);
  launch_attention_forward<FmaTiles<__nv_bfloat16, 256, 2, 2>>(a, stream);
}

}  // namespace dmuon::cuda
