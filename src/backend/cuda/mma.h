// Tensor-core products of one warp: 16 x 8 += 16 x 16 times 16 x 8 of float16 or bfloat16, summed in float32, and the loads
// that fill their operands from shared memory (PTX: mma.sync.m16n8k16, ldmatrix; sm_80 and later). All 32 lanes of a warp call
// together. On the host every lane computes its part of the same tile from what the others give it.
//
// Where elements lie, with g = lane / 4 and t = lane % 4:
//   A (16 x 16)  x[0]: (g, 2t) (g, 2t + 1) · x[1]: row g + 8 · x[2]: columns + 8 · x[3]: both
//   B (16 x 8)   x[0]: (2t, g) (2t + 1, g) · x[1]: rows + 8
//   C (16 x 8)   x[0], x[1]: (g, 2t) (g, 2t + 1) · x[2], x[3]: row g + 8
// The lower half of a 32-bit x is the element named first.
#pragma once

#include <type_traits>

#include "backend/cuda/device_language.h"

namespace dmuon::cuda {

struct MmaA {
  uint32_t x[4];
};
struct MmaB {
  uint32_t x[2];
};
struct MmaC {
  float x[4];
};

// c += a b. T: __half or __nv_bfloat16.
template <class T>
__device__ __forceinline__ void mma_16x8x16(MmaC& c, const MmaA& a, const MmaB& b);

// Four 8 x 8 matrices of 16-bit elements: lane 8 j + i gives the address of row i of matrix j, 16-byte aligned in shared
// memory; r[j] receives elements (g, 2t) and (g, 2t + 1) of matrix j.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row);
// The same with every matrix transposed: r[j] receives elements (2t, g) and (2t + 1, g).
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row);

// Two floats rounded to nearest even and packed, the first one below.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high);

// 2^x as the special function unit gives it, within two units in the last place; subnormal results are zero.
__device__ __forceinline__ float exp2_approximate(float x);

#ifdef __CUDACC__

__device__ __forceinline__ float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

template <class T>
__device__ __forceinline__ void mma_16x8x16(MmaC& c, const MmaA& a, const MmaB& b) {
  if constexpr (std::is_same_v<T, __half>)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
                 : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c.x[0]), "+f"(c.x[1]), "+f"(c.x[2]), "+f"(c.x[3])
                 : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}

#else

inline float exp2_approximate(float x) { return exp2f(x); }

namespace host_form {

inline uint16_t half_at(const void* row, int element) {
  uint16_t bits;
  std::memcpy(&bits, static_cast<const char*>(row) + 2 * element, sizeof bits);
  return bits;
}

// Sixteen elements widened; the conversions of the toolkit's headers take most of a product's time on the host.
template <class T>
void widen(const uint16_t* in, float* out) {
  for (int i = 0; i < 16; ++i) {
    uint32_t bits = static_cast<uint32_t>(in[i]) << 16;
    if constexpr (std::is_same_v<T, __half>) {
      const uint32_t magnitude = (in[i] & 0x7fffu) << 13;
      float scaled;
      std::memcpy(&scaled, &magnitude, sizeof scaled);
      scaled *= 0x1p112f;  // the exponents' biases differ by 112; exact for subnormal numbers too
      std::memcpy(&bits, &scaled, sizeof bits);
      if (magnitude >= 0x0f800000u) bits = magnitude | 0x7f800000u;  // infinite or NaN
      bits |= (in[i] & 0x8000u) << 16;
    }
    std::memcpy(out + i, &bits, sizeof bits);
  }
}

}  // namespace host_form

template <class T>
void mma_16x8x16(MmaC& c, const MmaA& a, const MmaB& b) {
  const int lane = cuda_on_host::lane(), g = lane / 4, t = lane % 4;
  // This lane's two rows of A and two columns of B, along k: other lanes hold two neighbours each.
  uint16_t rows[2][16], columns[2][16];
  const unsigned of_a = cuda_on_host::exchange(~0u, &a, sizeof a, __FILE__, __LINE__);
  for (int holder = 0; holder < 4; ++holder) {
    const void* x = cuda_on_host::read_lane(of_a, 4 * g + holder);
    for (int i = 0; i < 8; ++i) rows[i / 2 % 2][8 * (i / 4) + 2 * holder + i % 2] = host_form::half_at(x, i);
  }
  const unsigned of_b = cuda_on_host::exchange(~0u, &b, sizeof b, __FILE__, __LINE__);
  for (int column = 0; column < 2; ++column)
    for (int holder = 0; holder < 4; ++holder) {
      const void* x = cuda_on_host::read_lane(of_b, 4 * (2 * t + column) + holder);
      for (int i = 0; i < 4; ++i) columns[column][8 * (i / 2) + 2 * holder + i % 2] = host_form::half_at(x, i);
    }
  float left[2][16], right[2][16];
  for (int i = 0; i < 2; ++i) host_form::widen<T>(rows[i], left[i]), host_form::widen<T>(columns[i], right[i]);
  for (int row = 0; row < 2; ++row)
    for (int column = 0; column < 2; ++column)
      for (int k = 0; k < 16; ++k) c.x[2 * row + column] += left[row][k] * right[column][k];
}

inline void load_matrices(uint32_t (&r)[4], const void* row) {
  const unsigned token = cuda_on_host::exchange(~0u, &row, sizeof row, __FILE__, __LINE__);
  const int lane = cuda_on_host::lane(), g = lane / 4, t = lane % 4;
  for (int j = 0; j < 4; ++j) {
    const void* from = *static_cast<const void* const*>(cuda_on_host::read_lane(token, 8 * j + g));
    r[j] = host_form::half_at(from, 2 * t) | static_cast<uint32_t>(host_form::half_at(from, 2 * t + 1)) << 16;
  }
}
inline void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  const unsigned token = cuda_on_host::exchange(~0u, &row, sizeof row, __FILE__, __LINE__);
  const int lane = cuda_on_host::lane(), g = lane / 4, t = lane % 4;
  const auto from = [&](int other) { return *static_cast<const void* const*>(cuda_on_host::read_lane(token, other)); };
  for (int j = 0; j < 4; ++j)
    r[j] = host_form::half_at(from(8 * j + 2 * t), g) | static_cast<uint32_t>(host_form::half_at(from(8 * j + 2 * t + 1), g)) << 16;
}

template <class T>
uint32_t pack_pair(float low, float high) {
  const auto bits = [](float x) {
    T rounded;
    if constexpr (std::is_same_v<T, __half>)
      rounded = __float2half_rn(x);
    else
      rounded = __float2bfloat16_rn(x);
    uint16_t out;
    std::memcpy(&out, &rounded, sizeof out);
    return static_cast<uint32_t>(out);
  };
  return bits(low) | bits(high) << 16;
}

#endif

}  // namespace dmuon::cuda
