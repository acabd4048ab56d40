// The register tile all matrix work of the CPU backend is made of: rows x columns outputs, each the sum over k of
// a[row, k] * b[k, column], added in the order of k starting from zero. The right operand comes in panels of `columns`
// columns, [k, columns], zero-padded; the left one either row by row or interleaved (see the two loaders).
#pragma once

#include "backend/cpu/simd/vector.h"

namespace dmuon::DMUON_SIMD {
namespace {

#if defined(__AVX512F__)
constexpr int64_t tile_rows = 14;
#else
constexpr int64_t tile_rows = 6;
#endif
constexpr int64_t tile_vectors = 2;
constexpr int64_t tile_columns = tile_vectors * lanes;

struct Tile {
  Floats sums[tile_rows][tile_vectors];
};

// sums[r][v] = sum over k < depth of a[r * row_stride + k * k_stride] * b[k * tile_columns + v * lanes ...].
// Row by row: k_stride 1; interleaved: row_stride 1. Always reads tile_rows rows of a.
__attribute__((always_inline)) inline void multiply_tile(int64_t depth, const float* a, int64_t row_stride, int64_t k_stride,
                                                         const float* b, Tile& tile) {
  Floats sums[tile_rows][tile_vectors];
#pragma GCC unroll 16
  for (int64_t r = 0; r < tile_rows; ++r) sums[r][0] = sums[r][1] = Floats{};
#pragma GCC unroll 1
  for (int64_t k = 0; k < depth; ++k) {
    const Floats b0 = load(b), b1 = load(b + lanes);
#pragma GCC unroll 16
    for (int64_t r = 0; r < tile_rows; ++r) {
      const Floats x = broadcast(a[r * row_stride]);
      sums[r][0] += x * b0;
      sums[r][1] += x * b1;
    }
    a += k_stride;
    b += tile_columns;
  }
#pragma GCC unroll 16
  for (int64_t r = 0; r < tile_rows; ++r) {
    tile.sums[r][0] = sums[r][0];
    tile.sums[r][1] = sums[r][1];
  }
}

// Transposes a block of transpose_side x transpose_side floats: row j of the result, written at destination + j *
// destination_stride, is column j of the rows at source + i * stride.
#if defined(__AVX2__)
constexpr int64_t transpose_side = 8;
inline void transpose_block(const float* source, int64_t stride, float* destination, int64_t destination_stride) {
  // Halves of rows i and i + 4 side by side; then 4 x 4 transposes in both halves at once.
  const auto halves = [&](int64_t row, int64_t column) {
    const float* from = source + row * stride + column;
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(from)), _mm_loadu_ps(from + 4 * stride), 1);
  };
#pragma GCC unroll 2
  for (int64_t column = 0; column < 8; column += 4) {
    const __m256 r0 = halves(0, column), r1 = halves(1, column), r2 = halves(2, column), r3 = halves(3, column);
    const __m256 low01 = _mm256_unpacklo_ps(r0, r1), high01 = _mm256_unpackhi_ps(r0, r1);
    const __m256 low23 = _mm256_unpacklo_ps(r2, r3), high23 = _mm256_unpackhi_ps(r2, r3);
    float* to = destination + column * destination_stride;
    _mm256_storeu_ps(to, _mm256_shuffle_ps(low01, low23, 0x44));
    _mm256_storeu_ps(to + destination_stride, _mm256_shuffle_ps(low01, low23, 0xee));
    _mm256_storeu_ps(to + 2 * destination_stride, _mm256_shuffle_ps(high01, high23, 0x44));
    _mm256_storeu_ps(to + 3 * destination_stride, _mm256_shuffle_ps(high01, high23, 0xee));
  }
}
#else
constexpr int64_t transpose_side = 4;
inline void transpose_block(const float* source, int64_t stride, float* destination, int64_t destination_stride) {
  __m128 r0 = _mm_loadu_ps(source), r1 = _mm_loadu_ps(source + stride);
  __m128 r2 = _mm_loadu_ps(source + 2 * stride), r3 = _mm_loadu_ps(source + 3 * stride);
  _MM_TRANSPOSE4_PS(r0, r1, r2, r3);
  _mm_storeu_ps(destination, r0);
  _mm_storeu_ps(destination + destination_stride, r1);
  _mm_storeu_ps(destination + 2 * destination_stride, r2);
  _mm_storeu_ps(destination + 3 * destination_stride, r3);
}
#endif

// Packing walks a few rows at a time across all panels: reads stay sequential, whatever power of two the stride is.
constexpr int64_t pack_rows_at_once = 8;

// Packs columns [0, columns) of a [depth, columns] matrix into panels of tile_columns, the last one zero-padded; panel p
// lies at destination + p * depth * tile_columns.
inline void pack_right(const float* source, int64_t stride, int64_t depth, int64_t columns, float* destination) {
  for (int64_t top = 0; top < depth; top += pack_rows_at_once) {
    const int64_t bottom = top + pack_rows_at_once < depth ? top + pack_rows_at_once : depth;
    for (int64_t first = 0; first < columns; first += tile_columns) {
      const float* from = source + top * stride + first;
      float* to = destination + first * depth + top * tile_columns;
      const int64_t width = columns - first < tile_columns ? columns - first : tile_columns;
      for (int64_t k = top; k < bottom; ++k, from += stride, to += tile_columns) {
        if (width == tile_columns)
          for (int64_t v = 0; v < tile_columns; v += lanes) store(to + v, load(from + v));
        else
          for (int64_t j = 0; j < tile_columns; ++j) to[j] = j < width ? from[j] : 0.0f;
      }
    }
  }
}

// The same panels from the transposed storage [columns, depth].
inline void pack_right_transposed(const float* source, int64_t stride, int64_t depth, int64_t columns, float* destination) {
  for (int64_t first = 0; first < columns; first += tile_columns, destination += depth * tile_columns) {
    const int64_t width = columns - first < tile_columns ? columns - first : tile_columns;
    const float* from = source + first * stride;
    constexpr int64_t side = transpose_side;
    const int64_t whole_columns = width / side * side, whole_depth = depth / side * side;
    for (int64_t j = 0; j < whole_columns; j += side) {
      for (int64_t k = 0; k < whole_depth; k += side)
        transpose_block(from + j * stride + k, stride, destination + k * tile_columns + j, tile_columns);
      for (int64_t k = whole_depth; k < depth; ++k)
        for (int64_t i = j; i < j + side; ++i) destination[k * tile_columns + i] = from[i * stride + k];
    }
    for (int64_t j = whole_columns; j < tile_columns; ++j)
      for (int64_t k = 0; k < depth; ++k) destination[k * tile_columns + j] = j < width ? from[j * stride + k] : 0.0f;
  }
}

}  // namespace
}  // namespace dmuon::DMUON_SIMD
