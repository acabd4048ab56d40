#include "backend/cpu/simd/few_rows.h"

#include <utility>

#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/rows.h"

namespace dmuon::DMUON_SIMD {
namespace {

constexpr int64_t line = 16;  // floats of a cache line

// The halves of the `groups` equal parts of u, and of those of v, added: twice as many parts.
template <int groups, int... lane>
inline Floats add_halves(Floats u, Floats v, std::integer_sequence<int, lane...>) {
  constexpr int part = lanes / groups, half = part / 2;
  return __builtin_shufflevector(u, v, (lane / half * part + lane % half)...) +
         __builtin_shufflevector(u, v, (lane / half * part + half + lane % half)...);
}

// Sums of `lanes` vectors: of each what horizontal_sum gives, bit by bit.
template <int groups>
inline Floats horizontal_sums(const Floats* vectors) {
  if constexpr (groups == 1)
    return *vectors;
  else
    return add_halves<groups / 2>(horizontal_sums<groups / 2>(vectors), horizontal_sums<groups / 2>(vectors + groups / 2),
                                  std::make_integer_sequence<int, lanes>());
}

// y from the sums of all rows of columns [column, column + columns), at sums[c * m + r].
void write_outputs(const FewRowsTask& task, int64_t column, int64_t columns, const Floats* sums) {
  const int64_t count = columns * task.m;
  int64_t row = 0;
  float totals[lanes];
  for (int64_t first = 0; first < count; first += lanes) {
    const int64_t here = count - first < lanes ? count - first : lanes;
    if (here == lanes)
      store(totals, horizontal_sums<lanes>(sums + first));
    else
      for (int64_t i = 0; i < here; ++i) totals[i] = horizontal_sum(sums[first + i]);
    for (int64_t i = 0; i < here; ++i) {
      float* const y = task.y + row * task.n + column;
      float value = task.alpha * totals[i];
      if (task.beta != 0.0f) value += task.beta * *y;
      if (task.bias != nullptr) value += task.bias[column];
      *y = value;
      if (++row == task.m) row = 0, ++column;
    }
  }
}

// Sums of `rows` x `columns` outputs over elements [begin, end) of k, added to partial[column * m + row]. The rows of the weight are as
// many streams of reads, and those of the next tile, at `next`, are asked for on the way, since a stream of one row is too short for the
// processor to foresee it: of every row the part `share` of `shares`, so that tiles of rows over the same weight divide that between them.
template <int rows, int columns>
void add_products(const FewRowsTask& task, int64_t row, int64_t column, int64_t begin, int64_t end, const float* next, int64_t share,
                  int64_t shares, Floats* partial) {
  const int64_t k = task.k;
  const float *const x = task.x + row * k, *const w = task.w + column * k;
  const float* ask = next + share * (end - begin) / shares;
  const int64_t ask_step = line / shares;
  Floats sums[rows][columns];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) sums[r][c] = partial[c * task.m + r];
  const auto add = [&](int64_t i) __attribute__((always_inline)) {
    Floats weights[columns];
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) weights[c] = load(w + c * k + i);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Floats of_row = load(x + r * k + i);
#pragma GCC unroll 8
      for (int c = 0; c < columns; ++c) sums[r][c] = multiply_add(of_row, weights[c], sums[r][c]);
    }
  };
  int64_t i = begin;
  for (; i + line <= end; i += line, ask += ask_step) {
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) __builtin_prefetch(ask + c * k, 0, 2);
#pragma GCC unroll 4
    for (int64_t v = 0; v < line; v += lanes) add(i + v);
  }
  for (; i + lanes <= end; i += lanes) add(i);
  if (i < end)
    for (int c = 0; c < columns; ++c) {
      const Floats weight = load_partial(w + c * k + i, end - i);
      for (int r = 0; r < rows; ++r) sums[r][c] = multiply_add(load_partial(x + r * k + i, end - i), weight, sums[r][c]);
    }
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) partial[c * task.m + r] = sums[r][c];
}

// Up to four rows: eight to twelve sums run side by side, to hide the time of an addition, and x is small beside the weight.
template <int rows>
void product_of(const FewRowsTask& task, int64_t begin, int64_t end) {
  constexpr int columns = rows >= 3 ? 3 : 8 / rows;
  const auto tile = [&]<int width>(int64_t column) {
    Floats sums[rows * width] = {};
    add_products<rows, width>(task, 0, column, 0, task.k, task.w + (column + width) * task.k, 0, 1, sums);
    write_outputs(task, column, width, sums);
  };
  for (; begin + columns <= end; begin += columns) tile.template operator()<columns>(begin);
  for (; begin < end; ++begin) tile.template operator()<1>(begin);
}

template <int columns>
void add_rows(const FewRowsTask& task, int64_t column, int64_t begin, int64_t end, const float* next, Floats* partial) {
  // Tiles of two to four rows, as equal as can be: the later ones find the weight in the nearest cache.
  const int64_t tiles = (task.m + 3) / 4;
  int64_t row = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t rows = (task.m - row + tiles - t - 1) / (tiles - t);
    if (rows == 4)
      add_products<4, columns>(task, row, column, begin, end, next, t, tiles, partial + row);
    else if (rows == 3)
      add_products<3, columns>(task, row, column, begin, end, next, t, tiles, partial + row);
    else
      add_products<2, columns>(task, row, column, begin, end, next, t, tiles, partial + row);
    row += rows;
  }
}

// More rows: where they do not fit the second cache beside the weight, k is cut into blocks of which x does, and the sums of a group of
// columns wait in memory between the blocks. A tile of four rows and three columns reads seven vectors for twelve products.
void blocked_product(const FewRowsTask& task, int64_t begin, int64_t end) {
  constexpr int64_t group = 12, width = 3, floats_of_x = 32768;
  const int64_t k = task.k, blocks = (task.m * k + floats_of_x - 1) / floats_of_x;
  const int64_t block = blocks == 0 ? 1 : (k + blocks * line - 1) / (blocks * line) * line;  // equal ones
  Floats partial[group * FewRowsTask::most_rows];
  for (int64_t first = begin; first < end; first += group) {
    const int64_t columns = end - first < group ? end - first : group;
    for (int64_t i = 0; i < columns * task.m; ++i) partial[i] = Floats{};
    for (int64_t from = 0; from < k; from += block) {
      const int64_t until = k - from < block ? k : from + block;
      for (int64_t c = 0; c < columns; c += width) {
        const int64_t column = first + c, left = columns - c;
        // After the last tile of a block: the next block of the group, or the next group.
        const float* const next = left > width ? task.w + (column + width) * k + from
                                  : until < k  ? task.w + first * k + until
                                               : task.w + (first + group) * k;
        Floats* const sums = partial + c * task.m;
        if (left >= 3)
          add_rows<3>(task, column, from, until, next, sums);
        else if (left == 2)
          add_rows<2>(task, column, from, until, next, sums);
        else
          add_rows<1>(task, column, from, until, next, sums);
      }
    }
    write_outputs(task, first, columns, partial);
  }
}

}  // namespace

void few_rows_product(const FewRowsTask& task, int64_t begin, int64_t end) {
  if (task.m == 1) return product_of<1>(task, begin, end);
  if (task.m == 2) return product_of<2>(task, begin, end);
  if (task.m == 3) return product_of<3>(task, begin, end);
  if (task.m == 4) return product_of<4>(task, begin, end);
  blocked_product(task, begin, end);
}

}  // namespace dmuon::DMUON_SIMD
