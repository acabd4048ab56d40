// The float16 kernel of symmetric products (symmetric_product.h), included by the files that each instantiate one layout of the
// operands. A block computes one tile: slices along k pass through a ring of `depth` buffers in shared memory, filled by
// asynchronous copies; warps hold warp_rows x warp_columns of the tile in registers; the finished tile is laid out in shared
// memory once, and from there written to its place and, transposed, to its mirror image.
#pragma once

#include "backend/cuda/copy_async.h"
#include "backend/cuda/mma.h"
#include "backend/cuda/symmetric_tiles.h"

namespace dmuon::cuda {

template <int tile_rows, int tile_columns, int tile_warp_rows, int tile_warp_columns, int tile_depth>
struct HalfTile {
  static constexpr int rows = tile_rows, columns = tile_columns, depth = tile_depth;
  static constexpr int warp_rows = tile_warp_rows, warp_columns = tile_warp_columns;
  static constexpr int warps_across = columns / warp_columns, warps = rows / warp_rows * warps_across, threads = 32 * warps;
  static constexpr int slice = 32;   // along k
  static constexpr int padding = 8;  // behind each row in shared memory: eight rows at one column lie in different banks
  // Elements of shared memory that a slice of `across` rows or columns takes, contiguous along k or not.
  static constexpr int slice_pitch(bool along_k, int across) { return (along_k ? slice : across) + padding; }
  static constexpr int slice_elements(bool along_k, int across) { return (along_k ? across : slice) * slice_pitch(along_k, across); }
  static constexpr int result_pitch = columns + padding;
  static constexpr size_t shared_bytes(bool a_along_k, bool b_along_k) {
    const size_t ring = static_cast<size_t>(depth) * (slice_elements(a_along_k, rows) + slice_elements(b_along_k, columns));
    const size_t result = static_cast<size_t>(rows) * result_pitch;
    return sizeof(__half) * (ring > result ? ring : result);
  }
};

// Copies a box of a row-major matrix into shared memory; zeros outside the matrix.
template <int box_rows, int box_columns, int pitch, int threads>
__device__ __forceinline__ void load_box(AsyncCopies& copies, __half* shared, const __half* in, int64_t rows, int64_t columns,
                                         int64_t first_row, int64_t first_column, bool at_once) {
  constexpr int pieces = box_columns / 8;
#pragma unroll
  for (int piece = static_cast<int>(threadIdx.x); piece < box_rows * pieces; piece += threads) {
    const int r = piece / pieces, c = piece % pieces * 8;
    const int64_t row = first_row + r, column = first_column + c;
    const int64_t left = row < rows && column < columns ? columns - column : 0;
    __half* to = shared + r * pitch + c;
    if (at_once) {
      copies.add(to, left > 0 ? in + row * columns + column : in, left > 0 ? 16 : 0);
      continue;
    }
    for (int j = 0; j < 8; ++j) to[j] = j < left ? in[row * columns + column + j] : __half{};
  }
}

// One slice: sums += a b. The ring's buffers hold a as [rows][k] or [k][rows], b as [columns][k] or [k][columns].
template <class Tile, bool a_along_k, bool b_along_k>
__device__ __forceinline__ void multiply_slice(MmaC (&sums)[Tile::warp_rows / 16][Tile::warp_columns / 8], const __half* a, const __half* b,
                                               int first_row, int first_column) {
  constexpr int a_pitch = Tile::slice_pitch(a_along_k, Tile::rows), b_pitch = Tile::slice_pitch(b_along_k, Tile::columns);
  const int lane = static_cast<int>(threadIdx.x % 32), in_matrix = lane % 8, low = lane / 8 % 2 * 8, high = lane / 16 * 8;
#pragma unroll
  for (int k = 0; k < Tile::slice; k += 16) {
    MmaA left[Tile::warp_rows / 16];
    MmaB right[Tile::warp_columns / 8];
#pragma unroll
    for (int i = 0; i < Tile::warp_rows / 16; ++i) {
      const int row = first_row + 16 * i;
      if constexpr (a_along_k)
        load_matrices(left[i].x, a + (row + low + in_matrix) * a_pitch + k + high);
      else
        load_matrices_transposed(left[i].x, a + (k + high + in_matrix) * a_pitch + row + low);
    }
#pragma unroll
    for (int j = 0; j < Tile::warp_columns / 16; ++j) {
      const int column = first_column + 16 * j;
      uint32_t x[4];
      if constexpr (b_along_k)
        load_matrices(x, b + (column + high + in_matrix) * b_pitch + k + low);
      else
        load_matrices_transposed(x, b + (k + low + in_matrix) * b_pitch + column + high);
      right[2 * j] = {{x[0], x[1]}};
      right[2 * j + 1] = {{x[2], x[3]}};
    }
#pragma unroll
    for (int i = 0; i < Tile::warp_rows / 16; ++i)
#pragma unroll
      for (int j = 0; j < Tile::warp_columns / 8; ++j) mma_16x8x16<__half>(sums[i][j], left[i], right[j]);
  }
}

// Writes the finished tile and its mirror image. Elements above the diagonal are left to the tile that owns their images.
template <class Tile>
__device__ __forceinline__ void store_tile(const __half* result, __half* d, int64_t n, const TilePlace& place, bool at_once) {
  constexpr int pitch = Tile::result_pitch;
  const bool below = place.row >= place.column + Tile::columns;  // everywhere
  const bool whole = at_once && below && place.row + Tile::rows <= n;
  for (int piece = static_cast<int>(threadIdx.x); piece < Tile::rows * Tile::columns / 8; piece += Tile::threads) {
    const int r = piece / (Tile::columns / 8), c = piece % (Tile::columns / 8) * 8;
    const int64_t row = place.row + r, column = place.column + c;
    const __half* from = result + r * pitch + c;
    if (whole) {
      *reinterpret_cast<uint4*>(d + row * n + column) = *reinterpret_cast<const uint4*>(from);
      continue;
    }
    for (int j = 0; j < 8; ++j)
      if (row < n && column + j <= row) d[row * n + column + j] = from[j];
  }
  for (int piece = static_cast<int>(threadIdx.x); piece < Tile::rows * Tile::columns / 8; piece += Tile::threads) {
    // Four neighbours write 64 bytes of a row of d, eight groups of them read neighbouring columns.
    const int group = piece / 32, across = Tile::rows / 32;
    const int r = (group % across * 4 + piece % 4) * 8, c = group / across * 8 + piece % 32 / 4;
    const int64_t row = place.row + r, column = place.column + c;
    const __half* from = result + r * pitch + c;
    if (whole) {
      alignas(16) __half eight[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) eight[j] = from[j * pitch];
      *reinterpret_cast<uint4*>(d + column * n + row) = *reinterpret_cast<const uint4*>(eight);
      continue;
    }
    for (int j = 0; j < 8; ++j)
      if (row + j < n && column < row + j) d[column * n + row + j] = from[j * pitch];
  }
}

template <class Tile, bool a_along_k, bool b_along_k>
__global__ void __launch_bounds__(Tile::threads) symmetric_half_kernel(SymmetricBatch<__half> batch) {
  DMUON_DYNAMIC_SHARED(__half, shared);
  constexpr int a_elements = Tile::slice_elements(a_along_k, Tile::rows), b_elements = Tile::slice_elements(b_along_k, Tile::columns);
  const TilePlace place = tile_place(blockIdx.x, Tile::rows, Tile::columns);
  if (place.column >= batch.n) return;  // a row of tiles may reach past the matrix
  const SymmetricMatrix<__half>& matrix = batch.matrix[blockIdx.y];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const int warp_row = warp / Tile::warps_across * Tile::warp_rows, warp_column = warp % Tile::warps_across * Tile::warp_columns;

  AsyncCopies copies;
  __half* const ring = &shared[0];
  const int64_t n = batch.n, k = batch.k, slices = (k + Tile::slice - 1) / Tile::slice;
  const auto load = [&](int64_t slice) {
    __half* a = ring + static_cast<int>(slice % Tile::depth) * (a_elements + b_elements);
    __half* b = a + a_elements;
    const int64_t first = slice * Tile::slice;
    if constexpr (a_along_k)
      load_box<Tile::rows, Tile::slice, Tile::slice_pitch(true, Tile::rows), Tile::threads>(copies, a, matrix.a, n, k, place.row, first,
                                                                                            batch.at_once);
    else
      load_box<Tile::slice, Tile::rows, Tile::slice_pitch(false, Tile::rows), Tile::threads>(copies, a, matrix.a, k, n, first, place.row,
                                                                                             batch.at_once);
    if constexpr (b_along_k)
      load_box<Tile::columns, Tile::slice, Tile::slice_pitch(true, Tile::columns), Tile::threads>(copies, b, matrix.b, n, k, place.column,
                                                                                                  first, batch.at_once);
    else
      load_box<Tile::slice, Tile::columns, Tile::slice_pitch(false, Tile::columns), Tile::threads>(copies, b, matrix.b, k, n, first,
                                                                                                   place.column, batch.at_once);
  };

  MmaC sums[Tile::warp_rows / 16][Tile::warp_columns / 8]{};
  for (int slice = 0; slice < Tile::depth - 1; ++slice) {
    if (slice < slices) load(slice);
    copies.commit();
  }
  for (int64_t slice = 0; slice < slices; ++slice) {
    copies.wait<Tile::depth - 2>();
    __syncthreads();  // the slice is there for all, and the buffer that is filled next has been read by all
    if (slice + Tile::depth - 1 < slices) load(slice + Tile::depth - 1);
    copies.commit();
    const __half* a = ring + static_cast<int>(slice % Tile::depth) * (a_elements + b_elements);
    multiply_slice<Tile, a_along_k, b_along_k>(sums, a, a + a_elements, warp_row, warp_column);
  }
  copies.wait<0>();
  __syncthreads();  // the ring becomes the finished tile

  for (int i = 0; i < Tile::warp_rows / 16; ++i)
    for (int j = 0; j < Tile::warp_columns / 8; ++j)
      for (int h = 0; h < 2; ++h) {
        const int r = warp_row + 16 * i + 8 * h + lane / 4, c = warp_column + 8 * j + 2 * (lane % 4);
        float value[2];
        for (int e = 0; e < 2; ++e)
          value[e] = symmetric_value(batch, matrix, sums[i][j].x[2 * h + e], place.row + r, place.column + c + e,
                                     [](__half x) { return __half2float(x); });
        *reinterpret_cast<uint32_t*>(ring + r * Tile::result_pitch + c) = pack_pair<__half>(value[0], value[1]);
      }
  __syncthreads();
  store_tile<Tile>(ring, matrix.d, n, place, batch.store_at_once);
}

// One entry of the family, by the form's numbers; false when there is no such tile.
template <bool a_along_k, bool b_along_k>
bool start_symmetric_half(cudaStream_t stream, const SymmetricBatch<__half>& batch, int count, int rows, int columns, int depth) {
  const auto start = [&](auto tile) {
    using Tile = decltype(tile);
    if (rows != Tile::rows || columns != Tile::columns || depth != Tile::depth) return false;
    const int64_t tiles = tiles_before_row((batch.n + rows - 1) / rows, rows / columns);
    launch({"symmetric_product", dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(count)), dim3(Tile::threads),
            Tile::shared_bytes(a_along_k, b_along_k), stream},
           symmetric_half_kernel<Tile, a_along_k, b_along_k>, batch);
    return true;
  };
  return start(HalfTile<64, 64, 32, 32, 3>{}) || start(HalfTile<64, 64, 32, 32, 4>{}) || start(HalfTile<128, 64, 64, 32, 3>{}) ||
         start(HalfTile<128, 128, 64, 32, 3>{}) || start(HalfTile<128, 128, 64, 32, 4>{});
}

}  // namespace dmuon::cuda
