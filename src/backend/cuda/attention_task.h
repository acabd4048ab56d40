// What the kernels of attention share: the problem as they see it, tiles of the dropout mask, and their launches.
#pragma once

#include "backend/cuda/attention_memory.h"
#include "backend/cuda/attention_tiles.h"
#include "backend/cuda/dropout.h"

namespace dmuon::cuda {

// AttentionForward and AttentionBackward (kernels.h) as pointers and sizes.
template <class T>
struct AttentionTask {
  const T *query, *key, *value, *d_output;
  T *output, *d_query, *d_key, *d_value;
  float* log_sum_exp;                              // [B, H, T]; optional in the forward
  const float* delta;                              // [B, H, T]: sum over D of d_output * output
  int64_t batch, queries, keys, heads, key_heads;  // B, T, S, H, G
  int D;
  bool causal, aligned;
  int64_t key_offset;
  float scale;
  Dropout dropout;

  __device__ int64_t query_at(int64_t b, int64_t t, int64_t h) const { return ((b * queries + t) * heads + h) * D; }
  __device__ int64_t key_at(int64_t b, int64_t s, int64_t g) const { return ((b * keys + s) * key_heads + g) * D; }
  __device__ int64_t statistic_at(int64_t b, int64_t h, int64_t t) const { return (b * heads + h) * queries + t; }
  // Between one query, or key, of a head and the next.
  __device__ int64_t query_stride() const { return heads * D; }
  __device__ int64_t key_stride() const { return key_heads * D; }
  // Keys that query t of sequence b sees. What no query sees is not even read.
  __device__ int64_t visible(int64_t /*b*/, int64_t t) const { return causal ? std::min(keys, key_offset + t + 1) : keys; }
};

// For the forward: sequences may have offsets of their own, which travel with the launch: no memory, no copy, nothing to wait for.
template <class T>
struct AttentionForwardTask : AttentionTask<T> {
  static constexpr int64_t most_offsets = 64;
  bool own_offsets;
  int32_t key_offsets[most_offsets];

  __device__ int64_t visible(int64_t b, int64_t t) const {
    if (!own_offsets) return AttentionTask<T>::visible(b, t);
    return std::min(this->keys, key_offsets[b] + (this->causal ? t + 1 : this->queries));
  }
};

// Exponentials are powers of two: scores are scaled by scale * log2(e).
constexpr float log2_e = 1.4426950408889634f, ln_2 = 0.6931471805599453f;

// A tile of queries of one head. Tiles that see the most keys come first.
template <class Tiles>
struct QueryTile {
  int64_t b, h, g, first, count;  // sequence, head, key head, first query and how many
  int64_t limit;                  // keys that any of them sees

  template <class Task>
  __device__ explicit QueryTile(const Task& a) {
    const int64_t tiles = (a.queries + Tiles::rows - 1) / Tiles::rows, head = blockIdx.x / tiles;
    b = head / a.heads, h = head % a.heads, g = h / (a.heads / a.key_heads);
    first = (tiles - 1 - blockIdx.x % tiles) * Tiles::rows;
    count = std::min<int64_t>(Tiles::rows, a.queries - first);
    limit = a.visible(b, first + count - 1);
  }
};

// Which elements of a tile of scores the dropout keeps: 1 or 0 at row * columns + column, for elements of sequence b numbered
// first + row * row_step + column * column_step. Numbers are drawn here, in a loop that is not unrolled, and once per element.
template <class Tiles>
__device__ inline void draw_mask(uint8_t* kept, const Dropout& dropout, int64_t b, int64_t first, int64_t row_step, int64_t column_step) {
#pragma unroll 1
  for (int i = static_cast<int>(threadIdx.x); i < Tiles::rows * Tiles::columns; i += attention_threads) {
    const int64_t element = first + i / Tiles::columns * row_step + i % Tiles::columns * column_step;
    kept[i] = dropout_factor(dropout, static_cast<uint64_t>(b), static_cast<uint64_t>(element)) != 0.0f;
  }
}

// values *= the mask's factors.
template <class Tiles>
__device__ inline void apply_mask(typename Tiles::Scores& values, const uint8_t* kept, float factor) {
#pragma unroll
  for (int i = 0; i < Tiles::own_rows; ++i)
#pragma unroll
    for (int j = 0; j < Tiles::own_columns; ++j) values.at(i, j) *= kept[Tiles::row(i) * Tiles::columns + Tiles::column(j)] ? factor : 0.0f;
}

template <class Tiles>
constexpr size_t mask_bytes(const Dropout& dropout) {
  return dropout.active ? Tiles::rows * Tiles::columns : 0;
}

// One file each, so that they compile side by side. D at most 256.
void attention_forward_float32(const AttentionForwardTask<float>& a, cudaStream_t stream);
void attention_backward_float32(const AttentionTask<float>& a, cudaStream_t stream);
void attention_forward_bfloat16(const AttentionForwardTask<__nv_bfloat16>& a, cudaStream_t stream);
void attention_backward_bfloat16(const AttentionTask<__nv_bfloat16>& a, cudaStream_t stream);

}  // namespace dmuon::cuda
