#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_language.h"
#include "backend/cuda/missing.h"

namespace dmuon::cuda {

void Normalization::forward(Stream&, const NormalizationForward&) { missing("normalization_forward"); }

void Normalization::backward(Stream&, const NormalizationBackward&) { missing("normalization_backward"); }

}  // namespace dmuon::cuda
