// The dropout mask of DropoutMask (kernels.h) on the device: the Philox of core/random.h, bit for bit.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "backend/cuda/device_language.h"
#include "dmuon/backend/kernels.h"
#include "dmuon/core/random.h"

namespace dmuon::cuda {

struct Dropout {
  bool active = false;
  uint64_t key = 0;
  uint64_t threshold = 0;  // kept iff the 53 random bits >= threshold = ceil(probability * 2^53)
  float scale = 1;         // 1 / (1 - probability)
  uint64_t first_sequence = 0;
  int64_t elements_per_sequence = 1;
};

// `elements`: of the masked tensor, all sequences of the batch together.
inline Dropout dropout_of(const DropoutMask& mask, int64_t elements) {
  Dropout dropout;
  if (mask.probability <= 0.0 || mask.sequences < 1) return dropout;
  dropout.active = true;
  dropout.key = Random(mask.seed, RandomStream::dropout).key();
  dropout.threshold = static_cast<uint64_t>(std::ceil(mask.probability * 0x1p53));
  dropout.scale = static_cast<float>(1.0 / (1.0 - mask.probability));
  dropout.first_sequence = static_cast<uint64_t>(mask.first_sequence);
  dropout.elements_per_sequence = std::max<int64_t>(1, elements / mask.sequences);
  return dropout;
}

// Factor of element `element` of the batch's sequence `sequence`: 0 when dropped.
__device__ inline float dropout_factor(const Dropout& dropout, uint64_t sequence, uint64_t element) {
  sequence += dropout.first_sequence;
  uint32_t c0 = static_cast<uint32_t>(sequence), c1 = static_cast<uint32_t>(sequence >> 32);
  uint32_t c2 = static_cast<uint32_t>(element), c3 = static_cast<uint32_t>(element >> 32);
  uint32_t key0 = static_cast<uint32_t>(dropout.key), key1 = static_cast<uint32_t>(dropout.key >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0, product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  const uint64_t bits = (static_cast<uint64_t>(c1) << 32) | c0;
  return (bits >> 11) >= dropout.threshold ? dropout.scale : 0.0f;
}

// The factors of the elements from `first` of the tensor on; one division here instead of one per element.
class DropoutFactors {
 public:
  __device__ DropoutFactors(const Dropout& dropout, int64_t first) : dropout_(dropout) {
    if (!dropout.active) return;
    sequence_ = first / dropout.elements_per_sequence;
    element_ = first - sequence_ * dropout.elements_per_sequence;
  }
  // Of element first + i.
  __device__ float operator()(int64_t i) const {
    if (!dropout_.active) return 1.0f;
    int64_t sequence = sequence_, element = element_ + i;
    for (; element >= dropout_.elements_per_sequence; ++sequence) element -= dropout_.elements_per_sequence;
    return dropout_factor(dropout_, static_cast<uint64_t>(sequence), static_cast<uint64_t>(element));
  }

 private:
  const Dropout& dropout_;
  int64_t sequence_ = 0, element_ = 0;
};

}  // namespace dmuon::cuda
