// Arithmetic and bit functions of the device. Included by language.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace cuda_on_host {

template <class To, class From>
To bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

// The C library declares names such as __expf for itself, so the device's are macros.
inline float exponential(float x) { return std::exp(x); }
inline float logarithm(float x) { return std::log(x); }
inline float logarithm2(float x) { return std::log2(x); }
inline float logarithm10(float x) { return std::log10(x); }
inline float power(float x, float y) { return std::pow(x, y); }
inline float sine(float x) { return std::sin(x); }
inline float cosine(float x) { return std::cos(x); }
inline void sine_and_cosine(float x, float* s, float* c) { *s = std::sin(x), *c = std::cos(x); }

}  // namespace cuda_on_host

#define __expf(x) cuda_on_host::exponential(x)
#define __logf(x) cuda_on_host::logarithm(x)
#define __log2f(x) cuda_on_host::logarithm2(x)
#define __log10f(x) cuda_on_host::logarithm10(x)
#define __powf(x, y) cuda_on_host::power(x, y)
#define __sinf(x) cuda_on_host::sine(x)
#define __cosf(x) cuda_on_host::cosine(x)
#define __sincosf(x, s, c) cuda_on_host::sine_and_cosine(x, s, c)

inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frsqrt_rn(float a) { return 1.0f / std::sqrt(a); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
inline float rsqrtf(float a) { return 1.0f / std::sqrt(a); }
inline double rsqrt(double a) { return 1.0 / std::sqrt(a); }
inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }

inline int __float2int_rn(float a) { return static_cast<int>(std::nearbyint(a)); }
inline int __float2int_rz(float a) { return static_cast<int>(a); }
inline int __float2int_rd(float a) { return static_cast<int>(std::floor(a)); }
inline int __float2int_ru(float a) { return static_cast<int>(std::ceil(a)); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }
inline int __float_as_int(float a) { return cuda_on_host::bits<int>(a); }
inline unsigned __float_as_uint(float a) { return cuda_on_host::bits<unsigned>(a); }
inline float __int_as_float(int a) { return cuda_on_host::bits<float>(a); }
inline float __uint_as_float(unsigned a) { return cuda_on_host::bits<float>(a); }
inline long long __double_as_longlong(double a) { return cuda_on_host::bits<long long>(a); }
inline double __longlong_as_double(long long a) { return cuda_on_host::bits<double>(a); }

inline int __popc(unsigned a) { return __builtin_popcount(a); }
inline int __popcll(unsigned long long a) { return __builtin_popcountll(a); }
inline int __ffs(int a) { return __builtin_ffs(a); }
inline int __ffsll(long long a) { return __builtin_ffsll(a); }
inline int __clz(int a) { return a == 0 ? 32 : __builtin_clz(static_cast<unsigned>(a)); }
inline int __clzll(long long a) { return a == 0 ? 64 : __builtin_clzll(static_cast<unsigned long long>(a)); }
inline unsigned long long __brevll(unsigned long long a) {
  a = __builtin_bswap64(a);
  a = (a >> 4 & 0x0f0f0f0f0f0f0f0full) | (a & 0x0f0f0f0f0f0f0f0full) << 4;
  a = (a >> 2 & 0x3333333333333333ull) | (a & 0x3333333333333333ull) << 2;
  return (a >> 1 & 0x5555555555555555ull) | (a & 0x5555555555555555ull) << 1;
}
inline unsigned __brev(unsigned a) { return static_cast<unsigned>(__brevll(a) >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32); }
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>(((static_cast<uint64_t>(high) << 32 | low) << (by & 31)) >> 32);
}
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (by & 31));
}
// Bytes of (b, a), lowest first, chosen by the low three bits of each nibble of `selector`.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return result;
}

// Loads and stores with cache hints.
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
T __ldcg(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}
template <class T>
void __stcg(T* p, T value) {
  *p = value;
}

#define CUDA_ON_HOST_MIN_MAX(type)                          \
  inline type min(type a, type b) { return b < a ? b : a; } \
  inline type max(type a, type b) { return a < b ? b : a; }
CUDA_ON_HOST_MIN_MAX(int)
CUDA_ON_HOST_MIN_MAX(unsigned)
CUDA_ON_HOST_MIN_MAX(long)
CUDA_ON_HOST_MIN_MAX(unsigned long)
CUDA_ON_HOST_MIN_MAX(long long)
CUDA_ON_HOST_MIN_MAX(unsigned long long)
#undef CUDA_ON_HOST_MIN_MAX
inline float min(float a, float b) { return std::fmin(a, b); }
inline float max(float a, float b) { return std::fmax(a, b); }
inline double min(double a, double b) { return std::fmin(a, b); }
inline double max(double a, double b) { return std::fmax(a, b); }
