#include "backend/cpu/simd/gemm.h"

#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/gemm_kernel.h"

namespace dmuon::DMUON_SIMD {
namespace {

constexpr int64_t depth_block = 256;                          // a right panel of 256 x tile_columns stays in the L1 cache
constexpr int64_t row_block = tile_rows * (336 / tile_rows);  // a left block of 336 x 256 takes 340 KB: half to all of an L2 cache
constexpr int64_t column_block = 3072;                        // a right block of 256 x 3072 takes 3 MB of the L3 cache
constexpr int64_t left_stride = depth_block + 16;             // rows of a left block must not fall into the same cache sets

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// Left blocks: row by row with stride left_stride when a is [m, k], interleaved panels of tile_rows when it is [k, m]:
// either way packing only copies runs of memory. Rows up to the next multiple of tile_rows are zero.
void pack_left(const GemmTask& task, int64_t row, int64_t rows, int64_t first_k, int64_t depth, float* destination) {
  const int64_t padded = round_up(rows, tile_rows);
  if (!task.transpose_a) {
    for (int64_t r = 0; r < padded; ++r, destination += left_stride) {
      if (r < rows) {
        const float* from = task.a + (row + r) * task.a_stride + first_k;
        int64_t k = 0;
        for (; k + lanes <= depth; k += lanes) store(destination + k, load(from + k));
        for (; k < depth; ++k) destination[k] = from[k];
      } else {
        for (int64_t k = 0; k < depth; ++k) destination[k] = 0.0f;
      }
    }
    return;
  }
  for (int64_t top = 0; top < depth; top += pack_rows_at_once) {
    const int64_t bottom = smaller(top + pack_rows_at_once, depth);
    for (int64_t first = 0; first < padded; first += tile_rows) {
      const int64_t height = smaller(tile_rows, rows - first);
      const float* from = task.a + (first_k + top) * task.a_stride + row + first;
      float* to = destination + first * depth + top * tile_rows;
      for (int64_t k = top; k < bottom; ++k, from += task.a_stride, to += tile_rows) {
        if (height == tile_rows)
          __builtin_memcpy(to, from, sizeof(float) * tile_rows);
        else
          for (int64_t r = 0; r < tile_rows; ++r) to[r] = r < height ? from[r] : 0.0f;
      }
    }
  }
}

// One row of a tile into d. `first` marks the first block of k, which applies beta, diagonal and bias.
inline Floats finish(const GemmTask& task, Floats sum, bool first, Floats previous, Floats bias) {
  Floats value = broadcast(task.alpha) * sum;
  if (!first) return previous + value;
  if (task.beta != 0.0f) value += broadcast(task.beta) * previous;
  if (task.bias) value += bias;
  return value;
}

// A whole tile away from the diagonal: the same arithmetic without the questions.
inline void write_whole_tile(const GemmTask& task, const Tile& tile, int64_t offset, bool first) {
  const Floats alpha = broadcast(task.alpha), beta = broadcast(task.beta);
  const int64_t stride = task.d_stride;
  float* d = task.d + offset;
  if (!first) {
    for (int64_t r = 0; r < tile_rows; ++r, d += stride)
      for (int64_t v = 0; v < tile_vectors; ++v) store(d + v * lanes, load(d + v * lanes) + alpha * tile.sums[r][v]);
  } else if (task.beta == 0.0f) {
    for (int64_t r = 0; r < tile_rows; ++r, d += stride)
      for (int64_t v = 0; v < tile_vectors; ++v) store(d + v * lanes, alpha * tile.sums[r][v]);
  } else {
    const float* c = task.c + offset;
    for (int64_t r = 0; r < tile_rows; ++r, d += stride, c += stride)
      for (int64_t v = 0; v < tile_vectors; ++v) store(d + v * lanes, alpha * tile.sums[r][v] + beta * load(c + v * lanes));
  }
}

void write_tile(const GemmTask& task, const Tile& tile, int64_t row, int64_t rows, int64_t column, int64_t columns, bool first) {
  const bool below = column + tile_columns <= row, beside = below || (!task.symmetric && column >= row + tile_rows);
  if (rows == tile_rows && columns == tile_columns && !task.bias && (below || !task.symmetric) && (beside || task.diagonal == 0.0f))
    return write_whole_tile(task, tile, row * task.d_stride + column, first);
  const float* previous = first ? task.c : task.d;
  const bool reads = !first || task.beta != 0.0f;
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t offset = (row + r) * task.d_stride + column;
    int64_t width = columns;
    if (task.symmetric && row + r - column + 1 < width) width = row + r - column + 1;
    for (int64_t v = 0; v < tile_vectors; ++v) {
      const int64_t count = smaller(lanes, width - v * lanes);
      if (count <= 0) break;
      const int64_t at = offset + v * lanes;
      Floats old{}, bias{};
      if (count == lanes) {
        if (reads) old = load(previous + at);
        if (task.bias) bias = load(task.bias + column + v * lanes);
      } else {
        if (reads) old = load_partial(previous + at, count);
        if (task.bias) bias = load_partial(task.bias + column + v * lanes, count);
      }
      Floats value = finish(task, tile.sums[r][v], first, old, bias);
      const int64_t on_diagonal = row + r - (column + v * lanes);
      if (first && task.diagonal != 0.0f && on_diagonal >= 0 && on_diagonal < count) value[on_diagonal] += task.diagonal;
      if (count == lanes)
        store(task.d + at, value);
      else
        store_partial(task.d + at, value, count);
    }
  }
}

// Copies the lower triangle of rows [begin, end) to its mirrored place, block by block through the cache.
void mirror(float* d, int64_t stride, int64_t begin, int64_t end) {
  constexpr int64_t block = 16;
  alignas(64) float buffer[block * block];
  for (int64_t i = begin; i < end; i += block) {
    const int64_t rows = smaller(block, end - i);
    for (int64_t j = 0; j < i + rows; j += block) {
      if (rows == block && j + block <= i) {
        for (int64_t r = 0; r < block; r += 4)
          for (int64_t c = 0; c < block; c += 4) transpose_4x4(d + (i + r) * stride + j + c, stride, buffer + c * block + r, block);
        for (int64_t c = 0; c < block; ++c)
          for (int64_t v = 0; v < block; v += lanes) store(d + (j + c) * stride + i + v, load(buffer + c * block + v));
      } else {
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = j; c < j + block && c < i + r; ++c) d[c * stride + i + r] = d[(i + r) * stride + c];
      }
    }
  }
}

void multiply_panels(const GemmTask& task, int64_t row, int64_t rows, int64_t column, int64_t columns, int64_t depth, bool first,
                     const float* left, const float* right) {
  Tile tile;
  for (int64_t j = 0; j < columns; j += tile_columns) {
    const float* panel = right + j * depth;
    int64_t i = 0;
    if (task.symmetric && column + j > row) i = (column + j - row) / tile_rows * tile_rows;  // tiles above the diagonal
    for (; i < rows; i += tile_rows) {
      const float* out = task.d + (row + i) * task.d_stride + column + j;
      for (int64_t r = 0; r < tile_rows && i + r < rows; ++r) __builtin_prefetch(out + r * task.d_stride, 1);
      if (task.transpose_a)
        multiply_tile(depth, left + i * depth, 1, tile_rows, panel, tile);
      else
        multiply_tile(depth, left + i * left_stride, left_stride, 1, panel, tile);
      write_tile(task, tile, row + i, smaller(tile_rows, rows - i), column + j, smaller(tile_columns, columns - j), first);
    }
  }
}

}  // namespace

int64_t gemm_workspace_floats(int64_t m, int64_t n, int64_t k) {
  const int64_t left = round_up(smaller(m, row_block), tile_rows) * left_stride;
  const int64_t right = round_up(smaller(n, column_block), tile_columns) * smaller(k, depth_block);
  return round_up(left, 16) + round_up(right, 16);
}

void gemm(const GemmTask& task) {
  float* left = task.workspace;
  float* right = left + round_up(round_up(smaller(task.m, row_block), tile_rows) * left_stride, 16);
  const int64_t column_end = task.symmetric ? task.row_end : task.column_end;
  const int64_t column_begin = task.symmetric ? 0 : task.column_begin;
  for (int64_t column = column_begin; column < column_end; column += column_block) {
    const int64_t columns = smaller(column_block, column_end - column);
    for (int64_t k = 0; k == 0 || k < task.k; k += depth_block) {
      const int64_t depth = smaller(depth_block, task.k - k);
      if (task.transpose_b)
        pack_right_transposed(task.b + column * task.b_stride + k, task.b_stride, depth, columns, right);
      else
        pack_right(task.b + k * task.b_stride + column, task.b_stride, depth, columns, right);
      for (int64_t row = task.row_begin; row < task.row_end; row += row_block) {
        const int64_t rows = smaller(row_block, task.row_end - row);
        if (task.symmetric && column >= row + rows) continue;
        pack_left(task, row, rows, k, depth, left);
        multiply_panels(task, row, rows, column, columns, depth, k == 0, left, right);
      }
    }
  }
  if (task.symmetric) mirror(task.d, task.d_stride, task.row_begin, task.row_end);
}

}  // namespace dmuon::DMUON_SIMD
