#include "backend/cuda/attention_forward.h"

namespace dmuon::cuda {

void attention_forward_float32(const AttentionForwardTask<float>& a, cudaStream_t stream) {
  if (a.D <= 32) return launch_attention_forward<FmaTiles<float, 32, 4, 4>>(a, stream);
  if (a.D <= 64) return launch_attention_forward<FmaTiles<float, 64, 4, 4>>(a, stream);
  if (a.D <= 128) return launch_attention_forward<FmaTiles<float, 128, 4, 4>>(a, stream);
  launch_attention_forward<FmaTiles<float, 256, 2, 2>>(a, stream);
}

}  // namespace dmuon::cuda
