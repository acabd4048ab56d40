// The forward kernel of attention for any Tiles of attention_tiles.h, after FlashAttention-2 (Dao, 2023): scores stay in
// registers, the softmax is kept as a running maximum and sum, and the next tiles of keys and values travel meanwhile.
#pragma once

#include "backend/cuda/attention_task.h"

namespace dmuon::cuda {

// A block takes a tile of queries and goes through the keys that they see.
template <class Tiles>
__global__ void __launch_bounds__(attention_threads) attention_forward_kernel(AttentionForwardTask<typename Tiles::Element> a) {
  using Stored = typename Tiles::Stored;
  constexpr int key_tile = Tiles::columns * Tiles::stride;
  DMUON_DYNAMIC_SHARED(Stored, shared);
  Stored* const queries = &shared[0];
  Stored* const keys = queries + Tiles::rows * Tiles::stride;  // two tiles, used in turn
  Stored* const values = keys + 2 * key_tile;
  float* const scratch = reinterpret_cast<float*>(values + 2 * key_tile);
  uint8_t* const kept = reinterpret_cast<uint8_t*>(scratch + Tiles::scratch_floats);

  const QueryTile<Tiles> tile(a);
  AsyncCopies copies;
  const auto load_keys = [&](int64_t k, int turn) {
    const int64_t at = a.key_at(tile.b, k, tile.g), left = tile.limit - k;
    load_tile<Tiles>(copies, keys + turn * key_tile, Tiles::columns, a.key + at, a.key_stride(), left, a.D, a.aligned);
    load_tile<Tiles>(copies, values + turn * key_tile, Tiles::columns, a.value + at, a.key_stride(), left, a.D, a.aligned);
    copies.commit();
  };
  load_tile<Tiles>(copies, queries, Tiles::rows, a.query + a.query_at(tile.b, tile.first, tile.h), a.query_stride(), tile.count, a.D,
                   a.aligned);
  load_keys(0, 0);

  const float scale = a.scale * log2_e;
  typename Tiles::Sums sums{};
  float largest[Tiles::own_rows], total[Tiles::own_rows];  // of the row so far; of this thread's part of it
#pragma unroll
  for (int i = 0; i < Tiles::own_rows; ++i) largest[i] = -INFINITY, total[i] = 0.0f;

  int turn = 0;
  for (int64_t k = 0; k < tile.limit; k += Tiles::columns, turn ^= 1) {
    copies.wait<0>();
    __syncthreads();  // this turn's tiles are there, the other turn's have been used
    if (k + Tiles::columns < tile.limit) load_keys(k + Tiles::columns, turn ^ 1);
    if (a.dropout.active) {
      draw_mask<Tiles>(kept, a.dropout, tile.b, (tile.h * a.queries + tile.first) * a.keys + k, a.keys, 1);
      __syncthreads();
    }
    typename Tiles::Scores scores;
    Tiles::multiply(scores, queries, keys + turn * key_tile);
#pragma unroll
    for (int i = 0; i < Tiles::own_rows; ++i)
#pragma unroll
      for (int j = 0; j < Tiles::own_columns; ++j) scores.at(i, j) *= scale;
    if (k + Tiles::columns > a.visible(tile.b, tile.first)) {
#pragma unroll
      for (int i = 0; i < Tiles::own_rows; ++i) {
        const int visible = static_cast<int>(std::min<int64_t>(a.visible(tile.b, tile.first + Tiles::row(i)) - k, Tiles::columns));
#pragma unroll
        for (int j = 0; j < Tiles::own_columns; ++j)
          if (Tiles::column(j) >= visible) scores.at(i, j) = -INFINITY;
      }
    }
#pragma unroll
    for (int i = 0; i < Tiles::own_rows; ++i) {
      float high = largest[i];
#pragma unroll
      for (int j = 0; j < Tiles::own_columns; ++j) high = fmaxf(high, scores.at(i, j));
      high = Tiles::max_of_row(high);
      const float base = high == -INFINITY ? 0.0f : high;  // whose distance to -infinity is not NaN
      const float shrink = exp2_approximate(largest[i] - base);
      largest[i] = high;
      total[i] *= shrink;
#pragma unroll
      for (int j = 0; j < Tiles::own_columns; ++j) {
        scores.at(i, j) = exp2_approximate(scores.at(i, j) - base);
        total[i] += scores.at(i, j);
      }
#pragma unroll
      for (int j = 0; j < Tiles::own_depth; ++j) sums.at(i, j) *= shrink;
    }
    if (a.dropout.active) apply_mask<Tiles>(scores, kept, a.dropout.scale);
    Tiles::accumulate(sums, scores, values + turn * key_tile, scratch);
  }

#pragma unroll
  for (int i = 0; i < Tiles::own_rows; ++i) {
    total[i] = Tiles::sum_of_row(total[i]);
    if (a.log_sum_exp && Tiles::column(0) == 0 && Tiles::row(i) < tile.count)  // one thread of the row
      a.log_sum_exp[a.statistic_at(tile.b, tile.h, tile.first + Tiles::row(i))] = largest[i] * ln_2 + logf(total[i]);
  }
  copies.wait<0>();
  __syncthreads();
  store_sums<Tiles>(
      sums, [&](int i) { return total[i] == 0.0f ? 0.0f : 1.0f / total[i]; }, queries, a.output + a.query_at(tile.b, tile.first, tile.h),
      a.query_stride(), tile.count, a.D, a.aligned);
}

template <class Tiles>
void launch_attention_forward(const AttentionForwardTask<typename Tiles::Element>& a, cudaStream_t stream) {
  constexpr const char* name = "attention_forward";
  constexpr size_t bytes =
      (Tiles::rows + 4 * Tiles::columns) * Tiles::stride * sizeof(typename Tiles::Stored) + Tiles::scratch_floats * sizeof(float);
  const int64_t tiles = (a.queries + Tiles::rows - 1) / Tiles::rows;
  const Launch how{name, grid_of(name, a.batch * a.heads * tiles), dim3(attention_threads), bytes + mask_bytes<Tiles>(a.dropout), stream};
  require_attention_memory(how, a.D, sizeof(typename Tiles::Element) == 2);
  launch(how, attention_forward_kernel<Tiles>, a);
}

}  // namespace dmuon::cuda
