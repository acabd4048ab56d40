#include "backend/cpu/simd/few_rows.h"

#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/rows.h"

namespace dmuon::DMUON_SIMD {
namespace {

// Outputs of `rows` rows and `columns` columns from `column` on. Eight sums run side by side, to hide the time of an addition; the
// rows of the weight are as many streams of reads, and those of the next tile are asked for on the way, since a stream of one row
// is too short for the processor to foresee it.
template <int rows, int columns>
void product_tile(const FewRowsTask& task, int64_t column) {
  const int64_t k = task.k;
  const float* const w = task.w + column * k;
  Floats sums[rows][columns];
#pragma GCC unroll 8
  for (int r = 0; r < rows; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) sums[r][c] = Floats{};
  int64_t i = 0;
  for (; i + lanes <= k; i += lanes) {
#pragma GCC unroll 8
    for (int c = 0; c < columns; ++c) {
      const Floats weight = load(w + c * k + i);
      __builtin_prefetch(w + (columns + c) * k + i, 0, 2);
#pragma GCC unroll 8
      for (int r = 0; r < rows; ++r) sums[r][c] = multiply_add(load(task.x + r * k + i), weight, sums[r][c]);
    }
  }
  if (i < k)
    for (int c = 0; c < columns; ++c) {
      const Floats weight = load_partial(w + c * k + i, k - i);
      for (int r = 0; r < rows; ++r) sums[r][c] = multiply_add(load_partial(task.x + r * k + i, k - i), weight, sums[r][c]);
    }
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) {
      float* const y = task.y + r * task.n + column + c;
      float value = task.alpha * horizontal_sum(sums[r][c]);
      if (task.beta != 0.0f) value += task.beta * *y;
      if (task.bias != nullptr) value += task.bias[column + c];
      *y = value;
    }
}

template <int rows>
void product_of(const FewRowsTask& task, int64_t begin, int64_t end) {
  constexpr int columns = rows >= 5 ? 1 : rows >= 3 ? 2 : 8 / rows;
  for (; begin + columns <= end; begin += columns) product_tile<rows, columns>(task, begin);
  for (; begin < end; ++begin) product_tile<rows, 1>(task, begin);
}

}  // namespace

void few_rows_product(const FewRowsTask& task, int64_t begin, int64_t end) {
  switch (task.m) {
    case 1:
      return product_of<1>(task, begin, end);
    case 2:
      return product_of<2>(task, begin, end);
    case 3:
      return product_of<3>(task, begin, end);
    case 4:
      return product_of<4>(task, begin, end);
    case 5:
      return product_of<5>(task, begin, end);
    case 6:
      return product_of<6>(task, begin, end);
    case 7:
      return product_of<7>(task, begin, end);
    case 8:
      return product_of<8>(task, begin, end);
  }
}

}  // namespace dmuon::DMUON_SIMD
