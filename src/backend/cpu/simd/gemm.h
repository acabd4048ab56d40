// Own matrix product: packed panels and one register tile. Every output element sums over k in one order that depends on
// k alone: equal blocks, inside a block from zero in the order of k, blocks added in order. So any split of the output over
// threads gives the same bits.
#pragma once

#include <cstdint>

namespace dmuon::simd {

// d = alpha * op(a) op(b) + beta * c (+ diagonal * I) (+ bias on every row), restricted to the outputs of rows
// [row_begin, row_end) and columns [column_begin, column_end). d may alias c (equal strides).
struct GemmTask {
  int64_t m = 0, n = 0, k = 0;
  const float *a = nullptr, *b = nullptr, *c = nullptr;
  float* d = nullptr;
  int64_t a_stride = 0, b_stride = 0, d_stride = 0;  // c has the stride of d
  bool transpose_a = false;                          // a is [k, m]
  bool transpose_b = false;                          // b is [n, k]
  float alpha = 1, beta = 0, diagonal = 0;
  const float* bias = nullptr;
  // Only the lower triangle of the given rows (columns <= row, whatever column range is given) is computed; each element
  // is also written at its mirrored place. Of c only the lower triangle counts. Rows begin on a multiple of the table's
  // tile_columns.
  bool symmetric = false;
  int64_t row_begin = 0, row_end = 0, column_begin = 0, column_end = 0;
  float* workspace = nullptr;  // gemm_workspace_floats(...), aligned to 64 bytes
};

}  // namespace dmuon::simd
