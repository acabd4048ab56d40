// The register tiles of the matrix product, from the packed operands to the stored outputs: `rows` x (`vectors` * lanes)
// outputs, each the sum over k of a[row, k] * b[k, column], added in the order of k starting from zero. Which tile an
// output falls into changes nothing in its value.
#pragma once

#include "backend/cpu/simd/gemm_kernel.h"

namespace dmuon::DMUON_SIMD {
namespace {

// d = alpha * sums + factor * old; without `old`, d = alpha * sums. Both have `stride` floats a row.
struct TileOutput {
  float* d = nullptr;
  const float* old = nullptr;
  int64_t stride = 0;
  float alpha = 1, factor = 1;
};

// The left operand: row by row, or interleaved as [depth, rows] (`stride` is not read).
enum class LeftForm { by_rows, interleaved };

// The right operand: a packed panel, or, with a source, rows of it that the tile packs into `panel` on its way.
struct Right {
  float* panel = nullptr;
  const float* source = nullptr;
  int64_t stride = 0;
};

template <int rows, int vectors, LeftForm form, bool packing>
__attribute__((noinline)) void product_tile(int64_t depth, const float* a, int64_t stride, const Right& b, const TileOutput& out) {
  constexpr int64_t line = 16;  // floats of a cache line
  Floats sums[rows][vectors];
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) sums[r][v] = Floats{};
#pragma GCC unroll 16
  for (int r = 0; r < rows; ++r) __builtin_prefetch(out.d + r * out.stride, 1);

  // A pointer for every three rows: the addresses stay within base + {0, 1, 2} * stride.
  constexpr int bases = (rows + 2) / 3;
  const float* base[bases];
#pragma GCC unroll 8
  for (int g = 0; g < bases; ++g) base[g] = a + 3 * g * stride;

  float* panel = b.panel;
  const float* source = b.source;
  const auto step = [&](int64_t k) __attribute__((always_inline)) {
    Floats right[tile_vectors];
#pragma GCC unroll 2
    for (int v = 0; v < (packing ? static_cast<int>(tile_vectors) : vectors); ++v) {
      right[v] = load((packing ? source : panel) + v * lanes);
      if (packing) store(panel + v * lanes, right[v]);
    }
    if (packing) {
      __builtin_prefetch(source + 16 * b.stride);
      source += b.stride;
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r) {
      const Floats x = broadcast(form == LeftForm::interleaved ? a[k * rows + r] : base[r / 3][(r % 3) * stride + k]);
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[r][v] = multiply_add(x, right[v], sums[r][v]);
    }
    panel += tile_columns;
  };
  int64_t k = 0;
  for (; k + line <= depth; k += line) {
    if (form == LeftForm::by_rows) {
#pragma GCC unroll 16
      for (int r = 0; r < rows; ++r) __builtin_prefetch(base[r / 3] + (r % 3 + rows) * stride + k);  // the tile below
    }
#pragma GCC unroll 4
    for (int64_t j = 0; j < line; ++j) step(k + j);
  }
  for (; k < depth; ++k) step(k);

  const Floats alpha = broadcast(out.alpha), factor = broadcast(out.factor);
  float* d = out.d;
  if (out.old) {
    const float* old = out.old;
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r, d += out.stride, old += out.stride)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) store(d + v * lanes, multiply_add(alpha, sums[r][v], factor * load(old + v * lanes)));
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < rows; ++r, d += out.stride)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) store(d + v * lanes, alpha * sums[r][v]);
  }
}

// The tile of `rows` <= most rows.
template <int most, int vectors, LeftForm form>
inline void product_tile_of(int64_t rows, int64_t depth, const float* a, int64_t stride, const Right& b, const TileOutput& out) {
  if (rows == most) {
    if (b.source) return product_tile<most, vectors, form, true>(depth, a, stride, b, out);
    return product_tile<most, vectors, form, false>(depth, a, stride, b, out);
  }
  if constexpr (most > 1) product_tile_of<most - 1, vectors, form>(rows, depth, a, stride, b, out);
}

}  // namespace
}  // namespace dmuon::DMUON_SIMD
