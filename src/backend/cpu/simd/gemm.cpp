#include "backend/cpu/simd/gemm.h"

#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/gemm_tile.h"

namespace dmuon::DMUON_SIMD {
namespace {

constexpr int64_t column_block = 3072;  // a right block of 256 x 3072 takes 3 MB of the L3 cache

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// How k and the rows are cut. A right panel of depth x tile_columns stays in the L1 cache (16 to 32 KB), a left block of
// rows x depth takes 340 KB: half to all of an L2 cache. The depth is a function of k alone, for it changes bits.
struct Blocks {
  explicit Blocks(int64_t k) {                                       // k = 0 still makes one (empty) block
    constexpr int64_t usual = 256, alone = lanes == 16 ? 256 : 384;  // a k that fits whole is left whole
    const int64_t count = k <= alone ? 1 : (k + usual - 1) / usual;
    depth = k == 0 ? 1 : k <= alone ? k : smaller(usual, round_up((k + count - 1) / count, 8));
    rows = depth > usual ? 224 : lanes == 16 ? 320 : 336;
    left_stride = round_up(depth, 8) + 16;  // rows of a left block must not fall into the same cache sets
  }
  int64_t depth, rows, left_stride;
};

// Rows of the next tile when `rows` are left: tiles as equal as may be, so that none is too low to keep the processor busy.
int64_t tile_height(int64_t rows) {
  const int64_t tiles = (rows + tile_rows - 1) / tile_rows;
  return (rows + tiles - 1) / tiles;
}

// The same where tiles are interleaved: a symmetric product starts in the middle of a block, at any panel's first column.
int64_t interleaved_height(const GemmTask& task, int64_t row, int64_t rows) {
  return tile_height(task.symmetric ? smaller(rows - row, tile_columns - row % tile_columns) : rows - row);
}

// `count` runs of `length` <= most floats, one after another.
template <int64_t most>
inline void copy_runs(int64_t length, const float* from, int64_t stride, int64_t count, float* to) {
  if (length == most) {
    for (int64_t k = 0; k < count; ++k, from += stride, to += most) __builtin_memcpy(to, from, sizeof(float) * most);
    return;
  }
  if constexpr (most > 1) copy_runs<most - 1>(length, from, stride, count, to);
}

// The rows of one block of the left operand, for one block of k.
struct Left {
  const float* data = nullptr;
  int64_t stride = 0;
  bool interleaved = false;  // tile by tile [depth, height], else row by row
};

// a [m, k] is read where it lies when its rows spread over the cache sets by themselves, else copied row by row;
// a [k, m] becomes interleaved tiles: either way packing only copies runs of memory.
Left pack_left(const GemmTask& task, int64_t row, int64_t rows, int64_t first_k, int64_t depth, int64_t left_stride, float* buffer) {
  if (!task.transpose_a) {
    const float* from = task.a + row * task.a_stride + first_k;
    if (task.a_stride == depth) return {from, task.a_stride, false};
    float* to = buffer;
    for (int64_t r = 0; r < rows; ++r, from += task.a_stride, to += left_stride) {
      for (int64_t k = 0; k < depth; k += 16) __builtin_prefetch(from + 3 * task.a_stride + k);
      int64_t k = 0;
      for (; k + lanes <= depth; k += lanes) store(to + k, load(from + k));
      for (; k < depth; ++k) to[k] = from[k];
    }
    return {buffer, left_stride, false};
  }
  for (int64_t top = 0; top < depth; top += pack_rows_at_once) {
    const int64_t bottom = smaller(top + pack_rows_at_once, depth);
    for (int64_t first = 0, height = 0; first < rows; first += height) {
      height = interleaved_height(task, first, rows);
      const float* from = task.a + (first_k + top) * task.a_stride + row + first;
      copy_runs<tile_rows>(height, from, task.a_stride, bottom - top, buffer + first * depth + top * height);
    }
  }
  return {buffer, 0, true};
}

// Packs columns [column, column + columns) of the right operand, panel by panel.
void pack(const GemmTask& task, int64_t k, int64_t depth, int64_t column, int64_t columns, float* panels) {
  if (task.transpose_b)
    pack_right_transposed(task.b + column * task.b_stride + k, task.b_stride, depth, columns, panels);
  else
    pack_right(task.b + k * task.b_stride + column, task.b_stride, depth, columns, panels);
}

// A panel when its first rows come: packed, or left to the first tile, which packs it on its way.
Right pack_panel(const GemmTask& task, int64_t k, int64_t depth, int64_t column, int64_t columns, float* panel) {
  if (!task.transpose_b && columns == tile_columns) return {panel, task.b + k * task.b_stride + column, task.b_stride};
  pack(task, k, depth, column, columns, panel);
  return {panel, nullptr, 0};
}

// Copies the lower triangle's rows [row, row + rows) of columns [column, column + columns) to the mirrored place; elements
// above the diagonal are not read.
void mirror(float* d, int64_t stride, int64_t row, int64_t rows, int64_t column, int64_t columns) {
  constexpr int64_t side = transpose_side;
  const int64_t end = row + rows;
  for (int64_t j = column; j < column + columns; j += side) {
    const int64_t width = smaller(side, column + columns - j);
    int64_t i = row;
    for (; i < end && (i < j + width || width < side); ++i)  // the block on the diagonal, and columns left over
      for (int64_t c = j; c < j + width && c < i; ++c) d[c * stride + i] = d[i * stride + c];
    for (; i + side <= end; i += side) transpose_block(d + i * stride + j, stride, d + j * stride + i, stride);
    for (; i < end; ++i)
      for (int64_t c = j; c < j + width; ++c) d[c * stride + i] = d[i * stride + c];
  }
}

// One panel of columns of a block of rows.
struct Panel {
  int64_t row, rows, column, columns, depth;
  bool first;  // block of k: beta, diagonal and bias come in
  Right right;
};

template <int vectors>
void multiply_rows(const GemmTask& task, const Panel& p, const Left& left, const Right& right, int64_t first, int64_t height) {
  alignas(64) float edge[tile_columns * tile_columns];
  TileOutput out;
  const int64_t at = (p.row + first) * task.d_stride + p.column;
  out.d = task.d + at;
  out.stride = task.d_stride;
  out.alpha = task.alpha;
  out.factor = p.first ? task.beta : 1.0f;
  if (out.factor != 0.0f) out.old = (p.first ? task.c : task.d) + at;
  const bool whole = p.columns == tile_columns;
  TileOutput target = out;
  if (!whole) target = {edge, nullptr, tile_columns, 1.0f, 0.0f};
  constexpr int most = vectors == 1 ? static_cast<int>(lanes) : static_cast<int>(tile_rows);
  if (left.interleaved)
    product_tile_of<most, vectors, LeftForm::interleaved>(height, p.depth, left.data + first * p.depth, 0, right, target);
  else
    product_tile_of<most, vectors, LeftForm::by_rows>(height, p.depth, left.data + first * left.stride, left.stride, right, target);
  if (whole) return;
  for (int64_t r = 0; r < height; ++r, out.d += out.stride, out.old += out.old ? out.stride : 0)
    for (int64_t j = 0; j < p.columns; j += lanes) {
      const int64_t count = smaller(lanes, p.columns - j);
      const Floats sum = load(edge + r * tile_columns + j), scaled = broadcast(out.alpha) * sum;
      const Floats value =
          out.old ? multiply_add(broadcast(out.alpha), sum, broadcast(out.factor) * load_partial(out.old + j, count)) : scaled;
      store_partial(out.d + j, value, count);
    }
}

void multiply_panel(const GemmTask& task, const Panel& p, const Left& left, bool last) {
  const int64_t start = task.symmetric && p.column > p.row ? p.column - p.row : 0;  // above is above the diagonal
  // In a block on the diagonal the first rows need only the first vector. What is still computed above the diagonal is
  // overwritten by the mirror.
  const int64_t half = task.symmetric && p.row + start == p.column && p.columns == tile_columns ? start + lanes : start;
  Right right = p.right;
  for (int64_t i = start, height = 0; i < p.rows; i += height) {
    height = left.interleaved ? interleaved_height(task, i, p.rows) : i < half && half <= p.rows ? lanes : tile_height(p.rows - i);
    if (i + height <= half)
      multiply_rows<1>(task, p, left, right, i, height);
    else
      multiply_rows<tile_vectors>(task, p, left, right, i, height);
    right.source = nullptr;  // packed by now
  }
  float* d = task.d + p.row * task.d_stride;
  if (p.first && task.diagonal != 0.0f)
    for (int64_t j = p.column; j < p.column + p.columns; ++j)
      if (j >= p.row + start && j < p.row + p.rows) task.d[j * task.d_stride + j] += task.diagonal;
  if (p.first && task.bias)
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t j = p.column; j < p.column + p.columns; ++j) d[r * task.d_stride + j] += task.bias[j];
  if (task.symmetric && last) mirror(task.d, task.d_stride, p.row + start, p.rows - start, p.column, p.columns);
}

}  // namespace

int64_t gemm_workspace_floats(int64_t m, int64_t n, int64_t k) {
  const Blocks blocks(k);
  const int64_t left = smaller(m, blocks.rows) * blocks.left_stride;
  const int64_t right = round_up(smaller(n, column_block), tile_columns) * blocks.depth;
  return round_up(left, 16) + round_up(right, 16);
}

void gemm(const GemmTask& task) {
  const Blocks blocks(task.k);
  // A right operand that lies in the L2 cache is packed as its panels are needed; a larger one row by row, for its panels
  // would be read with a stride that no prefetcher follows.
  const bool panel_by_panel = (task.transpose_b ? task.n : task.k) * task.b_stride <= int64_t{64} * 1024;
  float* buffer = task.workspace;
  float* right = buffer + round_up(smaller(task.m, blocks.rows) * blocks.left_stride, 16);
  const int64_t column_end = task.symmetric ? task.row_end : task.column_end;
  const int64_t column_begin = task.symmetric ? 0 : task.column_begin;
  for (int64_t column = column_begin; column < column_end; column += column_block) {
    const int64_t columns = smaller(column_block, column_end - column);
    for (int64_t k = 0; k == 0 || k < task.k; k += blocks.depth) {
      const int64_t depth = smaller(blocks.depth, task.k - k);
      if (!panel_by_panel) pack(task, k, depth, column, columns, right);
      for (int64_t row = task.row_begin; row < task.row_end; row += blocks.rows) {
        const int64_t rows = smaller(blocks.rows, task.row_end - row);
        if (task.symmetric && column >= row + rows) continue;
        const Left left = pack_left(task, row, rows, k, depth, blocks.left_stride, buffer);
        for (int64_t j = 0; j < columns && !(task.symmetric && column + j >= row + rows); j += tile_columns) {
          const int64_t width = smaller(tile_columns, columns - j);
          Right panel{right + j * depth, nullptr, 0};
          if (panel_by_panel && (row == task.row_begin || (task.symmetric && column + j >= row)))
            panel = pack_panel(task, k, depth, column + j, width, panel.panel);
          multiply_panel(task, {row, rows, column + j, width, depth, k == 0, panel}, left, k + depth >= task.k);
        }
      }
    }
  }
}

}  // namespace dmuon::DMUON_SIMD
