#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_language.h"
#include "backend/cuda/missing.h"

namespace dmuon::cuda {
namespace {

constexpr unsigned block = 256;

__global__ void scaled_add_kernel(const float* x, float* y, float alpha, bool accumulate, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) y[i] = accumulate ? y[i] + alpha * x[i] : alpha * x[i];
}

}  // namespace

void Activation::forward(Stream&, const ActivationForward&) { missing("activation_forward"); }

void Activation::backward(Stream&, const ActivationBackward&) { missing("activation_backward"); }

void Activation::dropout(Stream&, const ApplyDropout&) { missing("activation_dropout"); }

void Activation::scaled_add(Stream& stream, const ScaledAdd& a) {
  const int64_t count = a.x.elements();
  backend_.enqueue(stream, "scaled_add", 0, {a.x, a.y}, [&](cudaStream_t handle) {
    launch({"scaled_add", dim3(static_cast<unsigned>((count + block - 1) / block)), dim3(block), 0, handle}, scaled_add_kernel,
           a.x.data<float>(), a.y.data<float>(), static_cast<float>(a.alpha), a.accumulate, count);
  });
}

}  // namespace dmuon::cuda
