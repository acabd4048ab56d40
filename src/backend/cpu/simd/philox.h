// The dropout mask of DropoutMask (kernels.h): the Philox of core/random.h on vectors, which is what lets a mask be computed
// again in the backward instead of stored.
#pragma once

#include "backend/cpu/simd/dropout.h"
#include "backend/cpu/simd/vector.h"

namespace dmuon::DMUON_SIMD {
namespace {

// Counters live in the low halves of 64-bit lanes: the widening multiplication reads those and ignores what the rounds leave
// above them.
constexpr int64_t wide_lanes = lanes / 2;
typedef uint64_t Wides __attribute__((vector_size(lanes * 4)));

inline Wides multiply_low_halves(Wides a, Wides b) {
#if defined(__AVX512F__)
  constexpr uint64_t low = 0xffffffffu;
  return (a & low) * (b & low);
#elif defined(__AVX2__)
  return reinterpret_cast<Wides>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  return reinterpret_cast<Wides>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#endif
}

// Two vectors side by side, because the rounds of one depend on each other.
constexpr int64_t philox_vectors = 2, philox_elements = philox_vectors * wide_lanes;

// The 64 random bits of Random::bits(sequence, element) for philox_elements consecutive elements.
inline void philox(uint64_t key, uint64_t sequence, uint64_t first_element, Wides* bits) {
  const Wides zero{};
  Wides c0[philox_vectors], c1[philox_vectors], c2[philox_vectors], c3[philox_vectors];
  for (int64_t v = 0; v < philox_vectors; ++v) {
    Wides element{};
    for (int64_t i = 0; i < wide_lanes; ++i) element[i] = first_element + static_cast<uint64_t>(v * wide_lanes + i);
    c0[v] = zero + sequence, c1[v] = zero + (sequence >> 32), c2[v] = element, c3[v] = element >> 32;
  }
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma GCC unroll 2
    for (int64_t v = 0; v < philox_vectors; ++v) {
      const Wides product0 = multiply_low_halves(c0[v], zero + 0xD2511F53u), product1 = multiply_low_halves(c2[v], zero + 0xCD9E8D57u);
      c0[v] = (product1 >> 32) ^ c1[v] ^ (zero + key0);
      c1[v] = product1;
      c2[v] = (product0 >> 32) ^ c3[v] ^ (zero + key1);
      c3[v] = product0;
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int64_t v = 0; v < philox_vectors; ++v) bits[v] = (c1[v] << 32) | (c0[v] & 0xffffffffu);
}

// factors[i] = keep ? 1 / (1 - p) : 0 for the elements first + i of `sequence`, i < count <= dropout_block.
constexpr int64_t dropout_block = 64;
inline void dropout_factors(const simd::Dropout& dropout, uint64_t sequence, uint64_t first, int64_t count, float* factors) {
  typedef int64_t SignedWides __attribute__((vector_size(lanes * 4)));
  typedef uint32_t Halves __attribute__((vector_size(lanes * 2)));
  const Wides zero{}, scale = zero + __builtin_bit_cast(uint32_t, dropout.scale);
  const SignedWides threshold = reinterpret_cast<SignedWides>(zero + dropout.threshold);
  for (int64_t i = 0; i < count; i += philox_elements) {
    Wides bits[philox_vectors];
    philox(dropout.key, sequence, first + static_cast<uint64_t>(i), bits);
    float kept[philox_elements];
    for (int64_t v = 0; v < philox_vectors; ++v) {
      const SignedWides draw = reinterpret_cast<SignedWides>(bits[v] >> 11);  // 53 bits: the sign plays no part
      const Halves words = __builtin_convertvector(reinterpret_cast<Wides>(draw >= threshold) & scale, Halves);
      __builtin_memcpy(kept + v * wide_lanes, &words, sizeof words);
    }
    if (count - i >= philox_elements)
      __builtin_memcpy(factors + i, kept, sizeof kept);
    else
      for (int64_t j = 0; j < count - i; ++j) factors[i + j] = kept[j];
  }
}

}  // namespace
}  // namespace dmuon::DMUON_SIMD
