// The vector type of one instruction-set variant. Every file of this folder is compiled once per variant with DMUON_SIMD
// set to its name. All that is defined here has internal linkage, so the linker can never hand code of a wider variant to
// a narrower one; for the same reason these files use no inline or template functions of other headers.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace dmuon::DMUON_SIMD {
namespace {

#if defined(__AVX512F__)
constexpr int64_t lanes = 16;
#elif defined(__AVX2__)
constexpr int64_t lanes = 8;
#else
constexpr int64_t lanes = 4;
#endif

typedef float Floats __attribute__((vector_size(lanes * 4)));
typedef int32_t Ints __attribute__((vector_size(lanes * 4)));
typedef float UnalignedFloats __attribute__((vector_size(lanes * 4), aligned(4), may_alias));

inline Floats load(const float* p) { return *reinterpret_cast<const UnalignedFloats*>(p); }
inline void store(float* p, Floats v) { *reinterpret_cast<UnalignedFloats*>(p) = v; }
inline Floats broadcast(float x) { return x - Floats{}; }

// a * b + c, in one rounding where the instruction set has it: the same in every place of the source.
#if defined(__AVX512F__)
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
#elif defined(__AVX2__)
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
#else
inline Floats multiply_add(Floats a, Floats b, Floats c) { return a * b + c; }
#endif

// The first `count` < lanes elements; the others read as `fill` and are not written.
inline Floats load_partial(const float* p, int64_t count, float fill = 0.0f) {
  Floats v = broadcast(fill);
  for (int64_t i = 0; i < count; ++i) v[i] = p[i];
  return v;
}
inline void store_partial(float* p, Floats v, int64_t count) {
  for (int64_t i = 0; i < count; ++i) p[i] = v[i];
}

inline void clear(float* p, int64_t count) { __builtin_memset(p, 0, static_cast<unsigned long>(count) * sizeof(float)); }

// NaN in the second operand stays.
#if defined(__AVX512F__)
inline Floats maximum(Floats a, Floats b) { return a > b ? a : b; }
inline Floats minimum(Floats a, Floats b) { return a < b ? a : b; }
#elif defined(__AVX2__)
inline Floats maximum(Floats a, Floats b) { return _mm256_max_ps(a, b); }
inline Floats minimum(Floats a, Floats b) { return _mm256_min_ps(a, b); }
#else
inline Floats maximum(Floats a, Floats b) { return _mm_max_ps(a, b); }
inline Floats minimum(Floats a, Floats b) { return _mm_min_ps(a, b); }
#endif

inline float horizontal_sum(Floats v) {
  float total[lanes];
  store(total, v);
  for (int64_t width = lanes / 2; width > 0; width /= 2)
    for (int64_t i = 0; i < width; ++i) total[i] += total[i + width];
  return total[0];
}
inline float horizontal_maximum(Floats v) {
  float best = v[0];
  for (int64_t i = 1; i < lanes; ++i) best = v[i] > best ? v[i] : best;
  return best;
}

}  // namespace
}  // namespace dmuon::DMUON_SIMD
