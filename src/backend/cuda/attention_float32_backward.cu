#include "backend/cuda/attention_backward.h"

namespace dmuon::cuda {

void attention_backward_float32(const AttentionTask<float>& a, cudaStream_t stream) {
  if (a.D <= 32) return launch_attention_backward<FmaTiles<float, 32, 4, 4>>(a, stream);
  if (a.D <= 64) return launch_attention_backward<FmaTiles<float, 64, 4, 4>>(a, stream);
  if (a.D <= 128) return launch_attention_backward<FmaTiles<float, 128, 4, 4>>(a, stream);
  launch_attention_backward<FmaTiles<float, 256, 2, 2>>(a, stream);
}

}  // namespace dmuon::cuda
