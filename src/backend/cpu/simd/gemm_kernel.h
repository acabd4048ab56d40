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

// Transposes a block of 4 x 4 floats: rows at source + i * stride become columns; row j of the result is written at
// destination + j * destination_stride.
typedef float Quad __attribute__((vector_size(16)));
typedef float UnalignedQuad __attribute__((vector_size(16), aligned(4), may_alias));
inline void transpose_4x4(const float* source, int64_t stride, float* destination, int64_t destination_stride) {
  const Quad r0 = *reinterpret_cast<const UnalignedQuad*>(source);
  const Quad r1 = *reinterpret_cast<const UnalignedQuad*>(source + stride);
  const Quad r2 = *reinterpret_cast<const UnalignedQuad*>(source + 2 * stride);
  const Quad r3 = *reinterpret_cast<const UnalignedQuad*>(source + 3 * stride);
  const Quad low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
  const Quad low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5), high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  *reinterpret_cast<UnalignedQuad*>(destination) = __builtin_shufflevector(low01, low23, 0, 1, 4, 5);
  *reinterpret_cast<UnalignedQuad*>(destination + destination_stride) = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  *reinterpret_cast<UnalignedQuad*>(destination + 2 * destination_stride) = __builtin_shufflevector(high01, high23, 0, 1, 4, 5);
  *reinterpret_cast<UnalignedQuad*>(destination + 3 * destination_stride) = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
}

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
    const int64_t whole_columns = width & ~int64_t{3}, whole_depth = depth & ~int64_t{3};
    for (int64_t j = 0; j < whole_columns; j += 4) {
      for (int64_t k = 0; k < whole_depth; k += 4)
        transpose_4x4(from + j * stride + k, stride, destination + k * tile_columns + j, tile_columns);
      for (int64_t k = whole_depth; k < depth; ++k)
        for (int64_t i = j; i < j + 4; ++i) destination[k * tile_columns + i] = from[i * stride + k];
    }
    for (int64_t j = whole_columns; j < tile_columns; ++j)
      for (int64_t k = 0; k < depth; ++k) destination[k * tile_columns + j] = j < width ? from[j * stride + k] : 0.0f;
  }
}

}  // namespace
}  // namespace dmuon::DMUON_SIMD
