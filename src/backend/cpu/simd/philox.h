// The dropout mask of DropoutMask (kernels.h): the Philox of core/random.h written so that it vectorises, which is what
// lets a mask be computed again in the backward instead of stored.
#pragma once

#include "backend/cpu/simd/dropout.h"
#include "backend/cpu/simd/vector.h"

namespace dmuon::DMUON_SIMD {
namespace {

// factors[i] = keep ? 1 / (1 - p) : 0 for the elements first + i of `sequence`, i < count <= dropout_block.
constexpr int64_t dropout_block = 64;
inline void dropout_factors(const simd::Dropout& dropout, uint64_t sequence, uint64_t first, int64_t count, float* factors) {
  uint32_t c0[dropout_block], c1[dropout_block], c2[dropout_block], c3[dropout_block];
  for (int64_t i = 0; i < dropout_block; ++i) {
    const uint64_t element = first + static_cast<uint64_t>(i);
    c0[i] = static_cast<uint32_t>(sequence);
    c1[i] = static_cast<uint32_t>(sequence >> 32);
    c2[i] = static_cast<uint32_t>(element);
    c3[i] = static_cast<uint32_t>(element >> 32);
  }
  uint32_t key0 = static_cast<uint32_t>(dropout.key), key1 = static_cast<uint32_t>(dropout.key >> 32);
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t i = 0; i < dropout_block; ++i) {
      const uint64_t product0 = uint64_t{0xD2511F53u} * c0[i];
      const uint64_t product1 = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(product1 >> 32) ^ c1[i] ^ key0;
      c1[i] = static_cast<uint32_t>(product1);
      c2[i] = static_cast<uint32_t>(product0 >> 32) ^ c3[i] ^ key1;
      c3[i] = static_cast<uint32_t>(product0);
    }
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = ((static_cast<uint64_t>(c1[i]) << 32) | c0[i]) >> 11;
    factors[i] = bits >= dropout.threshold ? dropout.scale : 0.0f;
  }
}

}  // namespace
}  // namespace dmuon::DMUON_SIMD
