// The product of a few rows with a whole weight, as each step of decoding makes it: bound by reading the weight once.
#pragma once

#include <cstdint>

namespace dmuon::simd {

// y[m, n] = alpha * x[m, k] w[n, k]^T + beta * y (+ bias on every row), all contiguous, 1 <= m <= most_rows. Every output sums
// over k by vector lanes in one order, whatever m and whichever columns are computed together.
struct FewRowsTask {
  static constexpr int64_t most_rows = 16;
  int64_t m = 0, n = 0, k = 0;
  const float *x = nullptr, *w = nullptr, *bias = nullptr;
  float* y = nullptr;
  float alpha = 1, beta = 0;
};

}  // namespace dmuon::simd
