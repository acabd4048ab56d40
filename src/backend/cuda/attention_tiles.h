// Products of tiles in shared memory, as attention needs them, by the threads of one block: the same interface from FMA
// instructions (FmaTiles) and from tensor cores (MmaTiles), so that every attention kernel is written once.
//
// A block has 128 threads. The tile of scores has `rows` x `columns` elements; a thread owns `own_rows` x `own_columns` of them,
// at row(i), column(j). Sums are the rows of a tile times `depth` columns; a thread owns own_rows x own_depth of them, at row(i),
// depth_of(j). Operands lie in shared memory row by row, `stride` elements apart, as `Stored`.
//
//   multiply(scores, a, b)              scores = a b^T,    a [rows][depth], b [columns][depth]
//   accumulate(sums, scores, b, scratch)  sums += scores b, b [columns][depth]; scratch: scratch_floats of shared memory
//   over_row<...>                       a reduction over the threads that share a row
#pragma once

#include "backend/cuda/copy_async.h"
#include "backend/cuda/elements.h"
#include "backend/cuda/mma.h"
#include "backend/cuda/reductions.h"

namespace dmuon::cuda {

constexpr int attention_threads = 128;

// Sixteen by eight threads; each owns every 16th row and every 8th column. T: the elements in device memory; arithmetic in float.
template <class T, int depth_of_tile, int rows_of_thread, int columns_of_thread>
struct FmaTiles {
  using Element = T;
  using Stored = float;
  static constexpr int depth = depth_of_tile, own_rows = rows_of_thread, own_columns = columns_of_thread, own_depth = depth / 8;
  static constexpr int rows = 16 * own_rows, columns = 8 * own_columns;
  static constexpr int stride = depth + 4;  // 16-byte reads of eight rows meet different banks
  static constexpr int scratch_stride = columns + 4, scratch_floats = rows * scratch_stride;

  struct Scores {
    float of[own_rows][own_columns];
    __device__ float& at(int i, int j) { return of[i][j]; }
  };
  struct Sums {
    float of[own_rows][own_depth];
    __device__ float& at(int i, int j) { return of[i][j]; }
  };

  __device__ static int row(int i) { return static_cast<int>(threadIdx.x) / 8 + 16 * i; }
  __device__ static int column(int j) { return static_cast<int>(threadIdx.x) % 8 + 8 * j; }
  __device__ static int depth_of(int j) { return 4 * (static_cast<int>(threadIdx.x) % 8) + 32 * (j / 4) + j % 4; }
  __device__ static float max_of_row(float value) { return warp_max<8>(value); }
  __device__ static float sum_of_row(float value) { return warp_sum<8>(value); }

  __device__ static void multiply(Scores& scores, const Stored* a, const Stored* b) {
    for (int i = 0; i < own_rows; ++i)
      for (int j = 0; j < own_columns; ++j) scores.at(i, j) = 0.0f;
#pragma unroll 1
    for (int d = 0; d < depth; d += 4) {
      float4 left[own_rows];
#pragma unroll
      for (int i = 0; i < own_rows; ++i) left[i] = *reinterpret_cast<const float4*>(a + row(i) * stride + d);
#pragma unroll
      for (int j = 0; j < own_columns; ++j) {
        const float4 right = *reinterpret_cast<const float4*>(b + column(j) * stride + d);
#pragma unroll
        for (int i = 0; i < own_rows; ++i)
          scores.at(i, j) += left[i].x * right.x + left[i].y * right.y + left[i].z * right.z + left[i].w * right.w;
      }
    }
  }

  // The threads of a row belong to one warp: what they put into the scratch is read by that warp alone.
  __device__ static void accumulate(Sums& sums, Scores& scores, const Stored* b, float* scratch) {
    __syncwarp();
    for (int i = 0; i < own_rows; ++i)
      for (int j = 0; j < own_columns; ++j) scratch[row(i) * scratch_stride + column(j)] = scores.at(i, j);
    __syncwarp();
#pragma unroll 1
    for (int k = 0; k < columns; k += 4) {
      float4 left[own_rows];
#pragma unroll
      for (int i = 0; i < own_rows; ++i) left[i] = *reinterpret_cast<const float4*>(scratch + row(i) * scratch_stride + k);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
#pragma unroll
        for (int j = 0; j < own_depth; j += 4) {
          const float4 right = *reinterpret_cast<const float4*>(b + (k + part) * stride + depth_of(j));
#pragma unroll
          for (int i = 0; i < own_rows; ++i) {
            const float factor = part == 0 ? left[i].x : part == 1 ? left[i].y : part == 2 ? left[i].z : left[i].w;
            sums.at(i, j) += factor * right.x;
            sums.at(i, j + 1) += factor * right.y;
            sums.at(i, j + 2) += factor * right.z;
            sums.at(i, j + 3) += factor * right.w;
          }
        }
      }
    }
  }
};

// Four warps, each with 16 rows, in tiles of mma.h; scores are rounded to bfloat16 where they become an operand.
template <int depth_of_tile, int columns_of_tile>
struct MmaTiles {
  using Element = __nv_bfloat16;
  using Stored = __nv_bfloat16;
  static constexpr int depth = depth_of_tile, columns = columns_of_tile, rows = 64;
  static constexpr int own_rows = 2, own_columns = columns / 4, own_depth = depth / 4;
  static constexpr int stride = depth + 8;  // the eight rows of a matrix that is loaded meet different banks
  static constexpr int scratch_floats = 0;

  struct Scores {
    MmaC of[columns / 8];
    __device__ float& at(int i, int j) { return of[j / 2].x[2 * i + j % 2]; }
  };
  struct Sums {
    MmaC of[depth / 8];
    __device__ float& at(int i, int j) { return of[j / 2].x[2 * i + j % 2]; }
  };

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int row(int i) { return 16 * warp() + lane() / 4 + 8 * i; }
  __device__ static int column(int j) { return 8 * (j / 2) + 2 * (lane() % 4) + j % 2; }
  __device__ static int depth_of(int j) { return column(j); }
  __device__ static float max_of_row(float value) { return warp_max<4>(value); }
  __device__ static float sum_of_row(float value) { return warp_sum<4>(value); }

  __device__ static void multiply(Scores& scores, const Stored* a, const Stored* b) {
    scores = {};
    const int in_matrix = lane() % 8, matrix = lane() / 8;
    const Stored* left = a + (16 * warp() + in_matrix + 8 * (matrix % 2)) * stride + 8 * (matrix / 2);
    const Stored* right = b + (in_matrix + 8 * (matrix / 2)) * stride + 8 * (matrix % 2);
#pragma unroll
    for (int d = 0; d < depth; d += 16) {
      MmaA from_a;
      load_matrices(from_a.x, left + d);
#pragma unroll
      for (int n = 0; n < columns; n += 16) {
        uint32_t r[4];
        load_matrices(r, right + n * stride + d);
        mma_16x8x16<Stored>(scores.of[n / 8], from_a, {{r[0], r[1]}});
        mma_16x8x16<Stored>(scores.of[n / 8 + 1], from_a, {{r[2], r[3]}});
      }
    }
  }

  __device__ static void accumulate(Sums& sums, Scores& scores, const Stored* b, float*) {
    const int in_matrix = lane() % 8, matrix = lane() / 8;
    const Stored* right = b + (in_matrix + 8 * (matrix % 2)) * stride + 8 * (matrix / 2);
#pragma unroll
    for (int k = 0; k < columns; k += 16) {
      const int j = k / 4;
      const MmaA from_scores{
          {pack_pair<Stored>(scores.at(0, j), scores.at(0, j + 1)), pack_pair<Stored>(scores.at(1, j), scores.at(1, j + 1)),
           pack_pair<Stored>(scores.at(0, j + 2), scores.at(0, j + 3)), pack_pair<Stored>(scores.at(1, j + 2), scores.at(1, j + 3))}};
#pragma unroll
      for (int d = 0; d < depth; d += 16) {
        uint32_t r[4];
        load_matrices_transposed(r, right + k * stride + d);
        mma_16x8x16<Stored>(sums.of[d / 8], from_scores, {{r[0], r[1]}});
        mma_16x8x16<Stored>(sums.of[d / 8 + 1], from_scores, {{r[2], r[3]}});
      }
    }
  }
};

// Starts to bring `count` rows of D elements, `row_stride` apart in device memory, into a tile of `tile_rows` rows; the rest of the
// tile is zero. Readers wait for `copies` and a barrier. aligned: D and all addresses allow 16-byte accesses.
template <class Tiles>
__device__ inline void load_tile(AsyncCopies& copies, typename Tiles::Stored* tile, int tile_rows, const typename Tiles::Element* from,
                                 int64_t row_stride, int64_t count, int D, bool aligned) {
  using T = typename Tiles::Element;
  using Stored = typename Tiles::Stored;
  constexpr int width = Pack<T>::size, packs = Tiles::depth / width;
  for (int p = static_cast<int>(threadIdx.x); p < tile_rows * packs; p += attention_threads) {
    const int r = p / packs, k = p % packs;
    Stored* to = tile + r * Tiles::stride + k * width;
    const bool holds = r < count && k * width < D;
    if constexpr (std::is_same_v<T, Stored>) {
      if (aligned) {
        copies.add(to, holds ? from + r * row_stride + k * width : from, holds ? 16 : 0);
        continue;
      }
    }
    Pack<T> pack{};
    if (holds) pack = load_pack<T, false>(from + r * row_stride, k, D);
    for (int i = 0; i < width; ++i) to[i] = narrow<Stored>(pack.at[i]);
  }
}

// Sums times factor(i) per own row, through the tile, to `count` rows of D elements in device memory. All threads of the block
// are done with the tile.
template <class Tiles, class Factor>
__device__ inline void store_sums(typename Tiles::Sums& sums, const Factor& factor, typename Tiles::Stored* tile,
                                  typename Tiles::Element* to, int64_t row_stride, int64_t count, int D, bool aligned) {
  using T = typename Tiles::Element;
  using Stored = typename Tiles::Stored;
  constexpr int width = Pack<T>::size, packs = Tiles::depth / width;
#pragma unroll
  for (int i = 0; i < Tiles::own_rows; ++i)
#pragma unroll
    for (int j = 0; j < Tiles::own_depth; ++j)
      tile[Tiles::row(i) * Tiles::stride + Tiles::depth_of(j)] = narrow<Stored>(factor(i) * sums.at(i, j));
  __syncthreads();
  for (int p = static_cast<int>(threadIdx.x); p < Tiles::rows * packs; p += attention_threads) {
    const int r = p / packs, k = p % packs;
    if (r >= count || k * width >= D) continue;
    const Stored* from = tile + r * Tiles::stride + k * width;
    if constexpr (std::is_same_v<T, Stored>) {
      if (aligned) {
        *reinterpret_cast<Chunk*>(to + r * row_stride + k * width) = *reinterpret_cast<const Chunk*>(from);
        continue;
      }
    }
    for (int i = 0; i < width && k * width + i < D; ++i) to[r * row_stride + k * width + i] = narrow<T>(widen(from[i]));
  }
}

}  // namespace dmuon::cuda
