#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/elements.h"

namespace dmuon::cuda {
namespace {

constexpr int64_t flat_threads = 256;

// 1 / (1 + exp(-z)) and one minus it, each without cancellation; exp may be infinite for a negative z.
struct Sigmoid {
  float value, complement;
};
__device__ inline Sigmoid sigmoid(float z) {
  const float e = __expf(-z), value = __fdividef(1.0f, 1.0f + e);
  return {value, z < 0.0f ? 1.0f - value : e * value};
}

template <class T, bool aligned>
__global__ void swiglu_forward_kernel(const T* gate, const T* up, T* output, int64_t count) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k >= packs_of<T>(count)) return;
  Pack<T> z = load_pack<T, aligned>(gate, k, count);
  const Pack<T> u = load_pack<T, aligned>(up, k, count);
  for (int i = 0; i < Pack<T>::size; ++i) z.at[i] *= sigmoid(z.at[i]).value * u.at[i];
  store_pack<T, aligned>(output, k, count, z);
}

template <class T>
struct Backward {
  const T *gate, *up, *d_output;
  T *d_gate, *d_up;
  int64_t count;
};

template <class T, bool aligned>
__global__ void swiglu_backward_kernel(Backward<T> a) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (k >= packs_of<T>(a.count)) return;
  Pack<T> z = load_pack<T, aligned>(a.gate, k, a.count), u = load_pack<T, aligned>(a.up, k, a.count);
  const Pack<T> d = load_pack<T, aligned>(a.d_output, k, a.count);
  for (int i = 0; i < Pack<T>::size; ++i) {
    const Sigmoid s = sigmoid(z.at[i]);
    const float silu = z.at[i] * s.value;
    z.at[i] = d.at[i] * u.at[i] * (s.value + silu * s.complement);
    u.at[i] = d.at[i] * silu;
  }
  store_pack<T, aligned>(a.d_gate, k, a.count, z);
  store_pack<T, aligned>(a.d_up, k, a.count, u);
}

template <class T>
Launch flat(const char* name, int64_t count, cudaStream_t stream) {
  return {name, grid_of(name, (packs_of<T>(count) + flat_threads - 1) / flat_threads), dim3(flat_threads), 0, stream};
}

}  // namespace

void Activation::swiglu_forward(Stream& stream, const SwiGluForward& f) {
  constexpr const char* name = "swiglu_forward";
  backend_.enqueue(stream, name, 0, {f.gate, f.up, f.output}, [&](cudaStream_t handle) {
    const int64_t count = f.gate.elements();
    with_access(name, f.gate, packs_are_aligned(count, {f.gate, f.up, f.output}), [&](auto access) {
      using T = typename decltype(access)::Element;
      launch(flat<T>(name, count, handle), swiglu_forward_kernel<T, decltype(access)::aligned>, elements_of<T>(f.gate),
             elements_of<T>(f.up), elements_of<T>(f.output), count);
    });
  });
}

void Activation::swiglu_backward(Stream& stream, const SwiGluBackward& g) {
  constexpr const char* name = "swiglu_backward";
  backend_.enqueue(stream, name, 0, {g.gate, g.up, g.d_output, g.d_gate, g.d_up}, [&](cudaStream_t handle) {
    const int64_t count = g.gate.elements();
    with_access(name, g.gate, packs_are_aligned(count, {g.gate, g.up, g.d_output, g.d_gate, g.d_up}), [&](auto access) {
      using T = typename decltype(access)::Element;
      Backward<T> a;
      a.gate = elements_of<T>(g.gate), a.up = elements_of<T>(g.up), a.d_output = elements_of<T>(g.d_output);
      a.d_gate = elements_of<T>(g.d_gate), a.d_up = elements_of<T>(g.d_up), a.count = count;
      launch(flat<T>(name, count, handle), swiglu_backward_kernel<T, decltype(access)::aligned>, a);
    });
  });
}

}  // namespace dmuon::cuda
