// The backward kernels of attention for any Tiles of attention_tiles.h, after FlashAttention-2 (Dao, 2023). Probabilities are
// computed again from log_sum_exp. No sum crosses blocks, so there are no atomics: d_query has its own pass, and a block of d_key
// and d_value goes through the heads of its group and their queries in order.
//
//   dscore_ts = p_ts (mask_ts do_t . v_s - delta_t)    d_query_t = scale sum_s dscore_ts k_s
//   d_value_s = sum_t mask_ts p_ts do_t                d_key_s   = scale sum_t dscore_ts q_t
#pragma once

#include "backend/cuda/attention_task.h"

namespace dmuon::cuda {

// A block takes a tile of queries, as in the forward.
template <class Tiles>
__global__ void __launch_bounds__(attention_threads) attention_query_gradient_kernel(AttentionTask<typename Tiles::Element> a) {
  using Stored = typename Tiles::Stored;
  constexpr int key_tile = Tiles::columns * Tiles::stride;
  DMUON_DYNAMIC_SHARED(Stored, shared);
  Stored* const queries = &shared[0];
  Stored* const d_outputs = queries + Tiles::rows * Tiles::stride;
  Stored* const keys = d_outputs + Tiles::rows * Tiles::stride;  // two tiles, used in turn
  Stored* const values = keys + 2 * key_tile;
  float* const scratch = reinterpret_cast<float*>(values + 2 * key_tile);
  uint8_t* const kept = reinterpret_cast<uint8_t*>(scratch + Tiles::scratch_floats);

  const QueryTile<Tiles> tile(a);
  const int64_t query_at = a.query_at(tile.b, tile.first, tile.h);
  AsyncCopies copies;
  const auto load_keys = [&](int64_t k, int turn) {
    const int64_t at = a.key_at(tile.b, k, tile.g), left = tile.limit - k;
    load_tile<Tiles>(copies, keys + turn * key_tile, Tiles::columns, a.key + at, a.key_stride(), left, a.D, a.aligned);
    load_tile<Tiles>(copies, values + turn * key_tile, Tiles::columns, a.value + at, a.key_stride(), left, a.D, a.aligned);
    copies.commit();
  };
  load_tile<Tiles>(copies, queries, Tiles::rows, a.query + query_at, a.query_stride(), tile.count, a.D, a.aligned);
  load_tile<Tiles>(copies, d_outputs, Tiles::rows, a.d_output + query_at, a.query_stride(), tile.count, a.D, a.aligned);
  load_keys(0, 0);

  const float scale = a.scale * log2_e;
  float log_sum_exp[Tiles::own_rows], delta[Tiles::own_rows];
#pragma unroll
  for (int i = 0; i < Tiles::own_rows; ++i) {
    const bool inside = Tiles::row(i) < tile.count;
    const int64_t at = a.statistic_at(tile.b, tile.h, tile.first + Tiles::row(i));
    log_sum_exp[i] = inside ? a.log_sum_exp[at] * log2_e : 0.0f;
    delta[i] = inside ? a.delta[at] : 0.0f;
  }
  typename Tiles::Sums sums{};
  int turn = 0;
  for (int64_t k = 0; k < tile.limit; k += Tiles::columns, turn ^= 1) {
    copies.wait<0>();
    __syncthreads();  // this turn's tiles are there, the other turn's have been used
    if (k + Tiles::columns < tile.limit) load_keys(k + Tiles::columns, turn ^ 1);
    if (a.dropout.active) {
      draw_mask<Tiles>(kept, a.dropout, tile.b, (tile.h * a.queries + tile.first) * a.keys + k, a.keys, 1);
      __syncthreads();
    }
    typename Tiles::Scores scores, d_probabilities;
    Tiles::multiply(scores, queries, keys + turn * key_tile);
    Tiles::multiply(d_probabilities, d_outputs, values + turn * key_tile);
    if (a.dropout.active) apply_mask<Tiles>(d_probabilities, kept, a.dropout.scale);
#pragma unroll
    for (int i = 0; i < Tiles::own_rows; ++i)
#pragma unroll
      for (int j = 0; j < Tiles::own_columns; ++j)
        scores.at(i, j) = exp2_approximate(scores.at(i, j) * scale - log_sum_exp[i]) * (d_probabilities.at(i, j) - delta[i]);
    if (k + Tiles::columns > a.visible(tile.b, tile.first)) {
#pragma unroll
      for (int i = 0; i < Tiles::own_rows; ++i) {
        const int visible = static_cast<int>(std::min<int64_t>(a.visible(tile.b, tile.first + Tiles::row(i)) - k, Tiles::columns));
#pragma unroll
        for (int j = 0; j < Tiles::own_columns; ++j)
          if (Tiles::column(j) >= visible) scores.at(i, j) = 0.0f;
      }
    }
    Tiles::accumulate(sums, scores, keys + turn * key_tile, scratch);
  }
  copies.wait<0>();
  __syncthreads();
  store_sums<Tiles>(
      sums, [&](int) { return a.scale; }, queries, a.d_query + query_at, a.query_stride(), tile.count, a.D, a.aligned);
}

// A block takes a tile of keys: its scores are those of the forward transposed, rows are keys and columns are queries.
template <class Tiles>
__global__ void __launch_bounds__(attention_threads) attention_key_gradient_kernel(AttentionTask<typename Tiles::Element> a) {
  using Stored = typename Tiles::Stored;
  constexpr int query_tile = Tiles::columns * Tiles::stride;
  DMUON_DYNAMIC_SHARED(Stored, shared);
  Stored* const keys = &shared[0];
  Stored* const values = keys + Tiles::rows * Tiles::stride;
  Stored* const queries = values + Tiles::rows * Tiles::stride;  // two tiles, used in turn, as are those below
  Stored* const d_outputs = queries + 2 * query_tile;
  float* const log_sum_exp = reinterpret_cast<float*>(d_outputs + 2 * query_tile);
  float* const delta = log_sum_exp + 2 * Tiles::columns;
  float* const scratch = delta + 2 * Tiles::columns;
  uint8_t* const kept = reinterpret_cast<uint8_t*>(scratch + Tiles::scratch_floats);

  const int64_t tiles = (a.keys + Tiles::rows - 1) / Tiles::rows, head = blockIdx.x / tiles;
  const int64_t b = head / a.key_heads, g = head % a.key_heads, group = a.heads / a.key_heads;
  const int64_t first = blockIdx.x % tiles * Tiles::rows, count = std::min<int64_t>(Tiles::rows, a.keys - first);
  const int64_t key_at = a.key_at(b, first, g), seen = a.visible(b, a.queries - 1) - first;
  // Steps of this block: all heads of the group, and of each the tiles of queries from the first that sees a key of this tile.
  const int64_t first_query = a.causal ? std::max<int64_t>(0, first - a.key_offset) / Tiles::columns * Tiles::columns : 0;
  const int64_t steps_of_head = a.queries > first_query ? (a.queries - first_query + Tiles::columns - 1) / Tiles::columns : 0;
  const int64_t steps = group * steps_of_head;
  const auto head_of = [&](int64_t step) { return g * group + step / steps_of_head; };
  const auto query_of = [&](int64_t step) { return first_query + step % steps_of_head * Tiles::columns; };

  AsyncCopies copies;
  const int c = static_cast<int>(threadIdx.x);  // the query of a tile whose statistics this thread brings
  float next_log_sum_exp = 0.0f, next_delta = 0.0f;
  const auto load_queries = [&](int64_t step, int turn) {
    const int64_t h = head_of(step), q = query_of(step), at = a.query_at(b, q, h), left = a.queries - q;
    load_tile<Tiles>(copies, queries + turn * query_tile, Tiles::columns, a.query + at, a.query_stride(), left, a.D, a.aligned);
    load_tile<Tiles>(copies, d_outputs + turn * query_tile, Tiles::columns, a.d_output + at, a.query_stride(), left, a.D, a.aligned);
    copies.commit();
    const bool inside = c < Tiles::columns && c < left;
    next_log_sum_exp = inside ? a.log_sum_exp[a.statistic_at(b, h, q + c)] : 0.0f;
    next_delta = inside ? a.delta[a.statistic_at(b, h, q + c)] : 0.0f;
  };
  const auto keep_statistics = [&](int turn) {
    if (c >= Tiles::columns) return;
    log_sum_exp[turn * Tiles::columns + c] = next_log_sum_exp * log2_e;
    delta[turn * Tiles::columns + c] = next_delta;
  };
  load_tile<Tiles>(copies, keys, Tiles::rows, a.key + key_at, a.key_stride(), seen, a.D, a.aligned);
  load_tile<Tiles>(copies, values, Tiles::rows, a.value + key_at, a.key_stride(), seen, a.D, a.aligned);
  if (steps > 0) load_queries(0, 0);
  keep_statistics(0);

  const float scale = a.scale * log2_e;
  typename Tiles::Sums d_key{}, d_value{};
  int turn = 0;
  for (int64_t step = 0; step < steps; ++step, turn ^= 1) {
    copies.wait<0>();
    __syncthreads();  // this turn's tiles are there, the other turn's have been used
    const bool more = step + 1 < steps;
    if (more) load_queries(step + 1, turn ^ 1);
    const int64_t q = query_of(step);
    if (a.dropout.active) {
      draw_mask<Tiles>(kept, a.dropout, b, (head_of(step) * a.queries + q) * a.keys + first, 1, a.keys);
      __syncthreads();
    }
    typename Tiles::Scores scores, d_probabilities;
    Tiles::multiply(scores, keys, queries + turn * query_tile);
    Tiles::multiply(d_probabilities, values, d_outputs + turn * query_tile);
    if (a.dropout.active) apply_mask<Tiles>(d_probabilities, kept, a.dropout.scale);
      // Queries beyond the last have zeros for d_output and delta and add nothing, whatever their probability.
#pragma unroll
    for (int j = 0; j < Tiles::own_columns; ++j) {
      const float base = log_sum_exp[turn * Tiles::columns + Tiles::column(j)],
                  subtracted = delta[turn * Tiles::columns + Tiles::column(j)];
#pragma unroll
      for (int i = 0; i < Tiles::own_rows; ++i) {
        scores.at(i, j) = exp2_approximate(scores.at(i, j) * scale - base);
        d_probabilities.at(i, j) = scores.at(i, j) * (d_probabilities.at(i, j) - subtracted);
      }
    }
    if (a.causal && first + Tiles::rows - 1 > a.key_offset + q) {
#pragma unroll
      for (int i = 0; i < Tiles::own_rows; ++i) {
        const int hidden_to = static_cast<int>(std::min<int64_t>(first + Tiles::row(i) - a.key_offset - q, Tiles::columns));
#pragma unroll
        for (int j = 0; j < Tiles::own_columns; ++j)
          if (Tiles::column(j) < hidden_to) scores.at(i, j) = 0.0f, d_probabilities.at(i, j) = 0.0f;
      }
    }
    if (a.dropout.active) apply_mask<Tiles>(scores, kept, a.dropout.scale);
    Tiles::accumulate(d_value, scores, d_outputs + turn * query_tile, scratch);
    Tiles::accumulate(d_key, d_probabilities, queries + turn * query_tile, scratch);
    if (more) keep_statistics(turn ^ 1);
  }
  copies.wait<0>();
  __syncthreads();
  store_sums<Tiles>(
      d_value, [](int) { return 1.0f; }, values, a.d_value + key_at, a.key_stride(), count, a.D, a.aligned);
  store_sums<Tiles>(
      d_key, [&](int) { return a.scale; }, keys, a.d_key + key_at, a.key_stride(), count, a.D, a.aligned);
}

template <class Tiles>
void launch_attention_backward(const AttentionTask<typename Tiles::Element>& a, cudaStream_t stream) {
  constexpr const char *of_query = "attention_query_gradient", *of_key = "attention_key_gradient";
  constexpr size_t bytes =
      (2 * Tiles::rows + 4 * Tiles::columns) * Tiles::stride * sizeof(typename Tiles::Stored) + Tiles::scratch_floats * sizeof(float);
  constexpr size_t statistics = 4 * Tiles::columns * sizeof(float);
  const size_t mask = mask_bytes<Tiles>(a.dropout);
  const int64_t query_tiles = (a.queries + Tiles::rows - 1) / Tiles::rows, key_tiles = (a.keys + Tiles::rows - 1) / Tiles::rows;
  const Launch query{of_query, grid_of(of_query, a.batch * a.heads * query_tiles), dim3(attention_threads), bytes + mask, stream};
  const Launch key{of_key, grid_of(of_key, a.batch * a.key_heads * key_tiles), dim3(attention_threads), bytes + statistics + mask, stream};
  for (const Launch& how : {query, key}) require_attention_memory(how, a.D, sizeof(typename Tiles::Element) == 2);
  launch(query, attention_query_gradient_kernel<Tiles>, a);
  launch(key, attention_key_gradient_kernel<Tiles>, a);
}

}  // namespace dmuon::cuda
