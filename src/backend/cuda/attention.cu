#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_language.h"
#include "backend/cuda/missing.h"

namespace dmuon::cuda {

void Attention::forward(Stream&, const AttentionForward&) { missing("attention_forward"); }

void Attention::backward(Stream&, const AttentionBackward&) { missing("attention_backward"); }

}  // namespace dmuon::cuda
