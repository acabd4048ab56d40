// What the row-wise loops share: vectors with a shorter last one, and dropout factors by flat element index.
#pragma once

#include "backend/cpu/simd/philox.h"
#include "backend/cpu/simd/vector.h"

namespace dmuon::DMUON_SIMD {
namespace {

// `left` elements remain from p on.
inline Floats load_row(const float* p, int64_t left, float fill = 0.0f) { return left >= lanes ? load(p) : load_partial(p, left, fill); }
inline void store_row(float* p, Floats v, int64_t left) {
  if (left >= lanes)
    store(p, v);
  else
    store_partial(p, v, left);
}

// factors[i] for the elements first + i, i < count <= dropout_block, of a tensor whose sequences lie one after another.
inline void flat_dropout_factors(const simd::Dropout& dropout, int64_t first, int64_t count, float* factors) {
  while (count > 0) {
    const int64_t sequence = first / dropout.elements_per_sequence, element = first % dropout.elements_per_sequence;
    const int64_t left = dropout.elements_per_sequence - element;
    const int64_t now = count < left ? count : left;
    dropout_factors(dropout, dropout.first_sequence + static_cast<uint64_t>(sequence), static_cast<uint64_t>(element), now, factors);
    first += now, factors += now, count -= now;
  }
}

}  // namespace
}  // namespace dmuon::DMUON_SIMD
