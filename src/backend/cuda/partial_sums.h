// Column sums in two steps, so that their bits depend on the data's shape alone: a kernel adds the rows of a block in order,
// then the blocks are added in order here.
#pragma once

#include <cstdint>

#include "backend/cuda/cuda_backend.h"

namespace dmuon::cuda {

// Rows in fixed blocks: at most 512, of at least `least_rows` rows, a multiple of `multiple`.
struct RowPartition {
  RowPartition(int64_t rows, int64_t least_rows, int64_t multiple = 1);
  int64_t size, count;  // `count` blocks of `size` rows, the last one shorter; none for no rows
};

// out[column] (+)= sum over blocks, for up to three outputs side by side. The partial sums lie as [blocks][outputs][packs * width];
// column c of an output stands at (c % width) * packs + c / width, as threads that own packs of `width` columns write them
// without bank conflicts. Without blocks the sums are zero.
struct PartialSums {
  const float* partials = nullptr;
  int64_t blocks = 0, columns = 0, packs = 0;
  int width = 1;
  int outputs = 0;
  float* out[3] = {};
  bool accumulate[3] = {};

  void add(const Tensor& tensor, bool accumulates);  // the next output; skipped when undefined
};

void add_partial_sums(cudaStream_t stream, const PartialSums& sums);

}  // namespace dmuon::cuda
