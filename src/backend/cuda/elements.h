// The elements of the model's kernels: float32 and bfloat16, widened to float for arithmetic, moved in packs of 16 bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "backend/cuda/device_language.h"
#include "dmuon/core/error.h"
#include "dmuon/core/tensor.h"
#include "dmuon/core/text.h"

namespace dmuon::cuda {

__device__ inline float widen(float value) { return value; }
__device__ inline float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
// Rounds to nearest even; NaN stays NaN.
template <class T>
__device__ inline T narrow(float value);
template <>
__device__ inline float narrow<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
// What `value` is once stored as T.
template <class T>
__device__ inline float rounded(float value) {
  return widen(narrow<T>(value));
}

// 16 bytes as one access moves them, whatever their type.
struct __attribute__((aligned(16), may_alias)) Chunk {
  uint32_t words[4];
};

// The elements of 16 bytes, widened.
template <class T>
struct Pack {
  static constexpr int size = 16 / sizeof(T);
  float at[size];
};

template <class T>
__host__ __device__ inline int64_t packs_of(int64_t columns) {
  return (columns + Pack<T>::size - 1) / Pack<T>::size;
}

// Pack `k` of a row. Aligned: one access. Otherwise one element at a time, and those past the row's end read as zero. Both
// give an element to the same thread, so that sums have the same bits however a tensor lies in memory.
template <class T, bool aligned>
__device__ inline Pack<T> load_pack(const T* row, int64_t k, int64_t columns) {
  constexpr int size = Pack<T>::size;
  Pack<T> pack;
  if constexpr (aligned) {
    const Chunk chunk = *reinterpret_cast<const Chunk*>(row + k * size);
    T elements[size];
    memcpy(static_cast<void*>(elements), &chunk, sizeof chunk);
    for (int i = 0; i < size; ++i) pack.at[i] = widen(elements[i]);
  } else {
    for (int i = 0; i < size; ++i) pack.at[i] = k * size + i < columns ? widen(row[k * size + i]) : 0.0f;
  }
  return pack;
}

template <class T, bool aligned>
__device__ inline void store_pack(T* row, int64_t k, int64_t columns, const Pack<T>& pack) {
  constexpr int size = Pack<T>::size;
  if constexpr (aligned) {
    T elements[size];
    for (int i = 0; i < size; ++i) elements[i] = narrow<T>(pack.at[i]);
    Chunk chunk;
    memcpy(&chunk, elements, sizeof chunk);
    *reinterpret_cast<Chunk*>(row + k * size) = chunk;
  } else {
    for (int i = 0; i < size; ++i)
      if (k * size + i < columns) row[k * size + i] = narrow<T>(pack.at[i]);
  }
}

// Is element i of pack k inside the row?
template <class T, bool aligned>
__device__ inline bool inside(int64_t k, int i, int64_t columns) {
  return aligned || k * Pack<T>::size + i < columns;
}

// ------------------------------------------------------------------------------------------------------------ host side

// Can packs of all these tensors, of rows of `columns` elements, be moved by one access each? Undefined tensors do not matter.
inline bool packs_are_aligned(int64_t columns, std::initializer_list<Tensor> tensors) {
  for (const Tensor& tensor : tensors)
    if (tensor.defined() && (columns * size_of(tensor.dtype()) % 16 != 0 || reinterpret_cast<uintptr_t>(tensor.raw()) % 16 != 0))
      return false;
  return true;
}

template <class T>
T* elements_of(const Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.raw()) : nullptr;
}

template <class T, bool is_aligned>
struct Access {
  using Element = T;
  static constexpr bool aligned = is_aligned;
};

// Calls body(T{}) with the element type of `tensor`: float or __nv_bfloat16. DeviceError naming kernel and tensor otherwise.
template <class Body>
void with_element_type(const char* kernel, const Tensor& tensor, const Body& body) {
  if (tensor.dtype() == DType::float32) return body(float{});
  if (tensor.dtype() == DType::bfloat16) return body(__nv_bfloat16{});
  throw DeviceError(text("kernel ", kernel, " of the CUDA backend takes float32 or bfloat16, found ", tensor.to_string()));
}

// Calls body(Access<T, aligned>{}).
template <class Body>
void with_access(const char* kernel, const Tensor& tensor, bool aligned, const Body& body) {
  with_element_type(kernel, tensor, [&](auto zero) {
    using T = decltype(zero);
    aligned ? body(Access<T, true>{}) : body(Access<T, false>{});
  });
}

// A grid of one dimension. DeviceError naming the kernel when a device cannot count so many blocks.
inline dim3 grid_of(const char* kernel, int64_t blocks) {
  if (blocks > 0x7fffffff)
    throw DeviceError(text("kernel ", kernel, " would need ", blocks, " blocks, a device counts ", 0x7fffffff, ": split the batch"));
  return dim3(static_cast<unsigned>(blocks));
}

// A whole number of warps, at least one, for `items` pieces of work and at most `most` threads.
inline unsigned threads_for(int64_t items, int64_t most) {
  return static_cast<unsigned>((std::min(std::max<int64_t>(items, 1), most) + 31) / 32 * 32);
}

}  // namespace dmuon::cuda
