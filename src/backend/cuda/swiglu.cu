#include "backend/cuda/cuda_backend.h"

#include "dmuon/core/error.h"

namespace dmuon::cuda {

void Activation::swiglu_forward(Stream&, const SwiGluForward&) { throw DeviceError("not yet"); }
void Activation::swiglu_backward(Stream&, const SwiGluBackward&) { throw DeviceError("not yet"); }

}  // namespace dmuon::cuda
