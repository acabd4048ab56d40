#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_language.h"
#include "backend/cuda/missing.h"

namespace dmuon::cuda {

void EmbeddingLoss::embedding_forward(Stream&, const EmbeddingForward&) { missing("embeddingloss_embedding_forward"); }

void EmbeddingLoss::embedding_backward(Stream&, const EmbeddingBackward&) { missing("embeddingloss_embedding_backward"); }

void EmbeddingLoss::softmax_cross_entropy(Stream&, const SoftmaxCrossEntropy&) { missing("embeddingloss_softmax_cross_entropy"); }

}  // namespace dmuon::cuda
