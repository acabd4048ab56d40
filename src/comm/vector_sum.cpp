#include "comm/vector_sum.h"

namespace dmuon {
namespace {

// Eight lanes, which the compiler maps to the instruction set of the function they are inlined into (hence no vectors as
// arguments or results, whose calling convention depends on it). Unaligned.
constexpr int lanes = 8;
constexpr int registers = vector_sum_tile / lanes;
typedef float Floats __attribute__((vector_size(4 * lanes), aligned(4), may_alias));
typedef uint32_t Words __attribute__((vector_size(4 * lanes), aligned(4), may_alias));
typedef uint16_t Halves __attribute__((vector_size(2 * lanes), aligned(2), may_alias));

#define DMUON_INLINE inline __attribute__((always_inline))

template <class T>
DMUON_INLINE void load(const T* at, Floats& value) {
  if constexpr (std::is_same_v<T, float>)
    value = *reinterpret_cast<const Floats*>(at);
  else
    value = reinterpret_cast<Floats>(__builtin_convertvector(*reinterpret_cast<const Halves*>(at), Words) << 16);
}

// The rounding of bfloat16(float).
template <class R>
DMUON_INLINE void store(R* at, const Floats& value) {
  if constexpr (std::is_same_v<R, float>) {
    *reinterpret_cast<Floats*>(at) = value;
  } else {
    const Words u = reinterpret_cast<Words>(value);
    const Words rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const Words nan = (u >> 16) | 0x0040u;
    *reinterpret_cast<Halves*>(at) = __builtin_convertvector((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded, Halves);
  }
}

template <class T, class R>
DMUON_INLINE void sum(std::span<const void* const> sources, int64_t elements, R* result, bool accumulate, std::span<void* const> copies) {
  for (int64_t first = 0; first < elements; first += vector_sum_tile) {
    Floats total[registers];
    Floats next;
    const T* source = static_cast<const T*>(sources[0]) + first;
#pragma GCC unroll 8
    for (int r = 0; r < registers; ++r) load(source + r * lanes, total[r]);
    for (size_t s = 1; s < sources.size(); ++s) {
      source = static_cast<const T*>(sources[s]) + first;
#pragma GCC unroll 8
      for (int r = 0; r < registers; ++r) {
        load(source + r * lanes, next);
        total[r] += next;
      }
    }
    R* target = result + first;
    if (accumulate) {
#pragma GCC unroll 8
      for (int r = 0; r < registers; ++r) {
        load(target + r * lanes, next);
        total[r] = next + total[r];
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < registers; ++r) store(target + r * lanes, total[r]);
    for (void* copy : copies) {
      target = static_cast<R*>(copy) + first;
#pragma GCC unroll 8
      for (int r = 0; r < registers; ++r) store(target + r * lanes, total[r]);
    }
  }
}

DMUON_INLINE void sum_any(const Reduction& reduction, std::span<const void* const> sources, int64_t elements, void* result, bool accumulate,
                          std::span<void* const> copies) {
  if (reduction.dtype == DType::float32)
    sum<float>(sources, elements, static_cast<float*>(result), accumulate, copies);
  else if (reduction.result == DType::float32)
    sum<bfloat16>(sources, elements, static_cast<float*>(result), accumulate, copies);
  else
    sum<bfloat16>(sources, elements, static_cast<bfloat16*>(result), accumulate, copies);
}

#undef DMUON_INLINE

__attribute__((target("avx2"))) void sum_avx2(const Reduction& reduction, std::span<const void* const> sources, int64_t elements,
                                              void* result, bool accumulate, std::span<void* const> copies) {
  sum_any(reduction, sources, elements, result, accumulate, copies);
}

void sum_baseline(const Reduction& reduction, std::span<const void* const> sources, int64_t elements, void* result, bool accumulate,
                  std::span<void* const> copies) {
  sum_any(reduction, sources, elements, result, accumulate, copies);
}

}  // namespace

void sum_vectors(const Reduction& reduction, std::span<const void* const> sources, int64_t elements, void* result, bool accumulate,
                 std::span<void* const> copies) {
  static const bool avx2 = __builtin_cpu_supports("avx2");
  (avx2 ? sum_avx2 : sum_baseline)(reduction, sources, elements, result, accumulate, copies);
}

}  // namespace dmuon
