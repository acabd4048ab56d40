#include "backend/cpu/simd/few_rows.h"

#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/rows.h"

namespace dmuon::DMUON_SIMD {
namespace {

void write_output(const FewRowsTask& task, int64_t row, int64_t column, Floats sum) {
  float* const y = task.y + row * task.n + column;
  float value = task.alpha * horizontal_sum(sum);
  if (task.beta != 0.0f) value += task.beta * *y;
  if (task.bias != nullptr) value += task.bias[column];
  *y = value;
}

// Sums of `rows` x `columns` outputs over elements [begin, end) of k, added to partial[column * m + row]. The rows of the weight are as
// many streams of reads, and those of the next tile, at `next`, are asked for on the way (`ask`), since a stream of one row is too short
// for the processor to foresee it.
template <int rows, int columns, bool ask>
void add_products(const FewRowsTask& task, int64_t row, int64_t column, int64_t begin, int64_t end, const float* next, Floats* partial) {
  const int64_t k = task.k;
  const float *const x = task.x + row * k, *const w = task.w + column * k;
  next -= begin;
  Floats sums[rows][columns];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) sums[r][c] = partial[c * task.m + r];
  int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) {
      const Floats weight = load(w + c * k + i);
      if (ask) __builtin_prefetch(next + c * k + i, 0, 2);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) sums[r][c] = multiply_add(load(x + r * k + i), weight, sums[r][c]);
    }
  }
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

// Up to four rows: eight sums run side by side, to hide the time of an addition, and x is small beside the weight.
template <int rows>
void product_of(const FewRowsTask& task, int64_t begin, int64_t end) {
  constexpr int columns = rows >= 3 ? 2 : 8 / rows;
  const auto tile = [&]<int width>(int64_t column) {
    Floats sums[rows * width] = {};
    add_products<rows, width, true>(task, 0, column, 0, task.k, task.w + (column + width) * task.k, sums);
    for (int c = 0; c < width; ++c)
      for (int r = 0; r < rows; ++r) write_output(task, r, column + c, sums[c * rows + r]);
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
    if (rows == 4 && t == 0)
      add_products<4, columns, true>(task, row, column, begin, end, next, partial + row);
    else if (rows == 4)
      add_products<4, columns, false>(task, row, column, begin, end, next, partial + row);
    else if (rows == 3 && t == 0)
      add_products<3, columns, true>(task, row, column, begin, end, next, partial + row);
    else if (rows == 3)
      add_products<3, columns, false>(task, row, column, begin, end, next, partial + row);
    else
      add_products<2, columns, false>(task, row, column, begin, end, next, partial + row);
    row += rows;
  }
}

// More rows: many of them do not fit the nearest cache as a whole, so k is cut into blocks of which x does, and the sums of a group of
// columns wait in memory between the blocks. A tile of four rows and three columns reads seven vectors for twelve products.
void blocked_product(const FewRowsTask& task, int64_t begin, int64_t end) {
  constexpr int64_t group = 12, width = 3, floats_of_x = 4096;
  const int64_t k = task.k, blocks = (task.m * k + floats_of_x - 1) / floats_of_x;
  const int64_t block = blocks == 0 ? 1 : (k + blocks * 2 * lanes - 1) / (blocks * 2 * lanes) * (2 * lanes);  // equal ones
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
    for (int64_t c = 0; c < columns; ++c)
      for (int64_t r = 0; r < task.m; ++r) write_output(task, r, first + c, partial[c * task.m + r]);
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
