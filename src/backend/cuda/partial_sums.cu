#include "backend/cuda/partial_sums.h"

#include <algorithm>

#include "backend/cuda/elements.h"

namespace dmuon::cuda {
namespace {

constexpr int side = 32;

// A block of 32 x 32 threads takes 32 places: thread row y adds the blocks y, y + 32, ..., then the rows are added in order.
__global__ void add_partial_sums_kernel(PartialSums s) {
  DMUON_SHARED(float, part, side* side);
  const int64_t places = s.packs * s.width, place = static_cast<int64_t>(blockIdx.x) * side + threadIdx.x;
  const int output = static_cast<int>(blockIdx.y);
  float sum = 0;
  if (place < places)
    for (int64_t b = threadIdx.y; b < s.blocks; b += side) sum += s.partials[(b * s.outputs + output) * places + place];
  part[threadIdx.y * side + threadIdx.x] = sum;
  __syncthreads();
  const int64_t column = place % s.packs * s.width + place / s.packs;
  if (threadIdx.y != 0 || place >= places || column >= s.columns) return;
  sum = 0;
  for (int y = 0; y < side; ++y) sum += part[y * side + threadIdx.x];
  // Constant indices: arrays of parameters that are indexed by a variable would be copied to local memory.
  float* const out = (output == 0 ? s.out[0] : output == 1 ? s.out[1] : s.out[2]) + column;
  const bool accumulate = output == 0 ? s.accumulate[0] : output == 1 ? s.accumulate[1] : s.accumulate[2];
  *out = accumulate ? *out + sum : sum;
}

}  // namespace

RowPartition::RowPartition(int64_t rows, int64_t least_rows, int64_t multiple) {
  constexpr int64_t most_blocks = 512;
  size = std::max(least_rows, (rows + most_blocks - 1) / most_blocks);
  size = (size + multiple - 1) / multiple * multiple;
  count = (rows + size - 1) / size;
}

void PartialSums::add(const Tensor& tensor, bool accumulates) {
  if (!tensor.defined()) return;
  out[outputs] = tensor.data<float>();
  accumulate[outputs++] = accumulates;
}

void add_partial_sums(cudaStream_t stream, const PartialSums& sums) {
  const int64_t places = sums.packs * sums.width;
  const dim3 grid(static_cast<unsigned>((places + side - 1) / side), static_cast<unsigned>(sums.outputs));
  launch({"add_partial_sums", grid, dim3(side, side), 0, stream}, add_partial_sums_kernel, sums);
}

}  // namespace dmuon::cuda
