// Passes that change a parameter and hand it out a second time.
#pragma once

#include "backend/cpu/simd/functions.h"

namespace dmuon::DMUON_SIMD {
namespace {

// Calls pass(first, last) block by block, in order, and copies each block of the parameter while it is in the L1 cache.
template <class Pass>
inline void publishing(const float* parameter, const Published& published, int64_t begin, int64_t end, const Pass& pass) {
  constexpr int64_t block = 1024;
  if (!published.float32 && !published.bfloat16) return pass(begin, end);
  for (int64_t first = begin; first < end; first += block) {
    const int64_t last = first + block < end ? first + block : end;
    pass(first, last);
    if (published.bfloat16) {
      narrow_to_bfloat16(parameter, published.bfloat16, first, last);
    } else {
      float* __restrict out = published.float32;
#pragma omp simd
      for (int64_t i = first; i < last; ++i) out[i] = parameter[i];
    }
  }
}

}  // namespace
}  // namespace dmuon::DMUON_SIMD
