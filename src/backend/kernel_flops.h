// What a kernel call asks for in floating-point operations, 2 per multiply-add: one count for all backends, so that
// costs() of a shape-only pass and of a real run agree whatever the device. Products and attention only; passes over
// memory are bounded by bandwidth and count 0.
#pragma once

#include "dmuon/backend/kernels.h"

namespace dmuon {

inline double flops_of(const Multiply& m) {
  const int64_t k = m.transpose_a ? m.a.rows() : m.a.size(-1);
  return 2.0 * static_cast<double>(m.c.elements()) * static_cast<double>(k);
}

// A symmetric product asks for the lower triangle with the diagonal.
inline double flops_of(const BatchedProduct& p) {
  double flops = 0;
  for (size_t i = 0; i < p.d.size(); ++i) {
    const auto k = static_cast<double>(p.transpose_a ? p.a[i].rows() : p.a[i].size(-1));
    const auto rows = static_cast<double>(p.d[i].rows());
    flops += p.symmetric ? k * rows * (rows + 1) : 2.0 * k * static_cast<double>(p.d[i].elements());
  }
  return flops;
}

// Two products over the visible query-key pairs; a causal mask hides half of the last T x T square.
inline double flops_of(const AttentionForward& a) {
  const auto queries = static_cast<double>(a.query.size(1)), sequences = static_cast<double>(a.query.size(0));
  double visible = sequences * (a.causal ? static_cast<double>(a.key_offset) + queries / 2 : static_cast<double>(a.key.size(1)));
  if (!a.key_offsets.empty()) visible = sequences * (a.causal ? queries / 2 : queries);
  for (const int64_t offset : a.key_offsets) visible += static_cast<double>(offset);
  return sequences == 0 ? 0.0 : 4.0 * static_cast<double>(a.query.elements()) / sequences * visible;
}

// Four products; what a backend recomputes instead of keeping is not asked for.
inline double flops_of(const AttentionBackward& a) { return 2.0 * flops_of(a.forward); }

}  // namespace dmuon
