// Four consecutive elements at a time, for kernels that pass over tensors once. Elements [4 i, 4 i + 4) are always one
// thread's, whether a tensor is aligned or not, so that sums do not depend on where it lies in memory.
#pragma once

#include "backend/cuda/device_language.h"
#include "dmuon/core/dtype.h"

namespace dmuon::cuda {

// The element types as the device names them.
template <class T>
struct DeviceType {
  using type = T;
};
template <>
struct DeviceType<bfloat16> {
  using type = __nv_bfloat16;
};
template <>
struct DeviceType<float16> {
  using type = __half;
};

inline __device__ float widen(float x) { return x; }
inline __device__ double widen(double x) { return x; }
inline __device__ float widen(__half x) { return __half2float(x); }
inline __device__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

// Rounded once to nearest even; NaN stays NaN and overflow becomes infinite.
inline __device__ void narrow(float x, float& out) { out = x; }
inline __device__ void narrow(float x, double& out) { out = static_cast<double>(x); }
inline __device__ void narrow(float x, __half& out) { out = __float2half_rn(x); }
inline __device__ void narrow(float x, __nv_bfloat16& out) { out = __float2bfloat16_rn(x); }
inline __device__ void narrow(double x, float& out) { out = static_cast<float>(x); }
inline __device__ void narrow(double x, double& out) { out = x; }
inline __device__ void narrow(double x, __half& out) { out = __double2half(x); }
inline __device__ void narrow(double x, __nv_bfloat16& out) { out = __double2bfloat16(x); }

template <class T>
struct alignas(4 * sizeof(T) < 16 ? 4 * sizeof(T) : 16) Four {
  T v[4];
};

// Whether four elements at a time can be moved at once.
template <class T>
bool movable_by_four(const T* p) {
  return reinterpret_cast<uintptr_t>(p) % alignof(Four<T>) == 0;
}

// Elements [i, i + count) of p; the rest of the four is 0. `at_once`: movable_by_four(p), i a multiple of four.
template <class T>
__device__ inline Four<T> load_four(const T* p, int64_t i, int count, bool at_once) {
  if (at_once && count == 4) return *reinterpret_cast<const Four<T>*>(p + i);
  Four<T> four{};
  for (int j = 0; j < 4; ++j)
    if (j < count) four.v[j] = p[i + j];
  return four;
}
template <class T>
__device__ inline void store_four(T* p, int64_t i, int count, bool at_once, const Four<T>& four) {
  if (at_once && count == 4) {
    *reinterpret_cast<Four<T>*>(p + i) = four;
    return;
  }
  for (int j = 0; j < 4; ++j)
    if (j < count) p[i + j] = four.v[j];
}

// The second copy of an updated parameter; at most one pointer is set.
struct PublishedCopy {
  float* single = nullptr;
  __nv_bfloat16* brief = nullptr;
  bool at_once = true;

  __device__ void store(int64_t i, int count, const Four<float>& values) const {
    if (single) store_four(single, i, count, at_once, values);
    if (!brief) return;
    Four<__nv_bfloat16> rounded{};
    for (int j = 0; j < 4; ++j) narrow(values.v[j], rounded.v[j]);
    store_four(brief, i, count, at_once, rounded);
  }
};
inline PublishedCopy published_copy(const Tensor& published) {
  PublishedCopy copy;
  if (!published.defined()) return copy;
  if (published.dtype() == DType::float32) {
    copy.single = published.data<float>();
    copy.at_once = movable_by_four(copy.single);
  } else {
    copy.brief = reinterpret_cast<__nv_bfloat16*>(published.data<bfloat16>());
    copy.at_once = movable_by_four(copy.brief);
  }
  return copy;
}

// The grid that gives each block `per_block` of `count` things.
inline dim3 blocks_for(int64_t count, int64_t per_block) { return dim3(static_cast<unsigned>((count + per_block - 1) / per_block)); }

}  // namespace dmuon::cuda
