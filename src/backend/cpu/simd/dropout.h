// A dropout mask as the hot loops take it.
#pragma once

#include <cstdint>

namespace dmuon::simd {

struct Dropout {
  bool active = false;
  uint64_t key = 0;
  uint64_t threshold = 0;  // kept iff the 53 random bits >= threshold = ceil(probability * 2^53)
  float scale = 1;         // 1 / (1 - probability)
  uint64_t first_sequence = 0;
  int64_t elements_per_sequence = 1;
};

}  // namespace dmuon::simd
