// What the kernels of symmetric products share: their arguments, and the tiles of a lower triangle.
#pragma once

#include "backend/cuda/device_language.h"

namespace dmuon::cuda {

// Arguments of one launch. Matrices are row-major without gaps; an operand that is contiguous along k is [n, k], otherwise
// [k, n]. `at_once`: rows of a and b begin at multiples of 16 bytes; `store_at_once`: those of d do.
template <class T>
struct SymmetricMatrix {
  const T *a, *b, *c;
  T* d;
  float alpha;
};
constexpr int symmetric_batch = 80;  // matrices of one launch: kernel arguments hold 4 KiB
template <class T>
struct SymmetricBatch {
  int64_t n, k;
  float beta, diagonal;
  bool at_once, store_at_once;
  SymmetricMatrix<T> matrix[symmetric_batch];
};

// Tile number `index` among those of rows x columns that reach the diagonal or lie below it, row of tiles after row of tiles.
struct TilePlace {
  int64_t row, column;  // of its first element
};
// Row i of tiles has ratio (i + 1) of them, ratio = rows / columns.
inline __host__ __device__ int64_t tiles_before_row(int64_t i, int ratio) { return ratio * i * (i + 1) / 2; }
inline __device__ TilePlace tile_place(int64_t index, int rows, int columns) {
  const int ratio = rows / columns;
  auto i = static_cast<int64_t>((sqrt(8.0 * static_cast<double>(index) / ratio + 1.0) - 1.0) / 2.0);
  while (tiles_before_row(i, ratio) > index) --i;
  while (tiles_before_row(i + 1, ratio) <= index) ++i;
  return {i * rows, (index - tiles_before_row(i, ratio)) * columns};
}

// alpha * sum + beta * c + diagonal at (row, column) of the lower triangle; c is read there only.
template <class T, class Widen>
__device__ float symmetric_value(const SymmetricBatch<T>& batch, const SymmetricMatrix<T>& matrix, float sum, int64_t row, int64_t column,
                                 const Widen& widen) {
  float value = matrix.alpha * sum;
  if (matrix.c && row < batch.n && column <= row) value += batch.beta * widen(matrix.c[row * batch.n + column]);
  return row == column ? value + batch.diagonal : value;
}

}  // namespace dmuon::cuda
