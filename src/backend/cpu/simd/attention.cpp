#include "backend/cpu/simd/attention.h"

#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/gemm_kernel.h"
#include "backend/cpu/simd/math.h"
#include "backend/cpu/simd/philox.h"

namespace dmuon::DMUON_SIMD {
namespace {

int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// A forward tile is a few register tiles high, so that its scores stay in the L1 cache beside the panel they meet.
constexpr int64_t forward_rows = tile_rows * (28 / tile_rows), forward_keys = 256;
constexpr int64_t backward_rows = 96, backward_keys = 96;
// Strides of the score tiles: room for padded panels, and never a multiple of the page size.
constexpr int64_t forward_stride = forward_keys + 16, backward_stride = 144;
static_assert(backward_stride >= (backward_keys + tile_columns - 1) / tile_columns * tile_columns &&
              backward_stride >= backward_keys + tile_rows);

inline void store_tile(const Tile& tile, float* destination, int64_t stride) {
  for (int64_t r = 0; r < tile_rows; ++r)
    for (int64_t v = 0; v < tile_vectors; ++v) store(destination + r * stride + v * lanes, tile.sums[r][v]);
}
inline void add_tile(const Tile& tile, float* destination, int64_t stride) {
  for (int64_t r = 0; r < tile_rows; ++r)
    for (int64_t v = 0; v < tile_vectors; ++v) {
      float* at = destination + r * stride + v * lanes;
      store(at, load(at) + tile.sums[r][v]);
    }
}

// rows x depth at `stride` to contiguous rows times `scale`; rows up to `padded` are zero.
void pack_rows(const float* source, int64_t stride, int64_t rows, int64_t padded, int64_t depth, float scale, float* destination) {
  for (int64_t r = 0; r < rows; ++r, source += stride, destination += depth)
    for (int64_t i = 0; i < depth; ++i) destination[i] = source[i] * scale;
  clear(destination, (padded - rows) * depth);
}

// Keys visible to query t, of those in [first, first + count).
inline int64_t visible(const AttentionTask& task, int64_t t, int64_t first, int64_t count) {
  if (!task.causal) return count;
  const int64_t seen = task.key_offset + t + 1 - first;
  return seen < 0 ? 0 : smaller(seen, count);
}

// scores[r, s] = rows[r] . column s of the packed keys, register tile by register tile; tiles without a visible pair are
// skipped. Rows are padded to whole register tiles.
void score_tile(const AttentionTask& task, const float* rows, int64_t first_row, int64_t row_count, const float* keys, int64_t first_key,
                int64_t key_count, float* scores, int64_t stride) {
  Tile tile;
  for (int64_t s = 0; s < key_count; s += tile_columns)
    for (int64_t r = 0; r < row_count; r += tile_rows) {
      const int64_t last_row = smaller(r + tile_rows, row_count) - 1;
      if (visible(task, first_row + last_row, first_key + s, 1) == 0) continue;
      // The usual head sizes as constants: row addresses then need no registers.
      if (task.depth == 64)
        multiply_tile(64, rows + r * 64, 64, 1, keys + s * 64, tile);
      else if (task.depth == 32)
        multiply_tile(32, rows + r * 32, 32, 1, keys + s * 32, tile);
      else
        multiply_tile(task.depth, rows + r * task.depth, task.depth, 1, keys + s * task.depth, tile);
      store_tile(tile, scores + r * stride + s, stride);
    }
}

void dropout_row(const AttentionTask& task, int64_t batch, int64_t head, int64_t t, int64_t first_key, int64_t count, float* factors) {
  const uint64_t sequence = task.dropout.first_sequence + static_cast<uint64_t>(batch);
  const uint64_t element = static_cast<uint64_t>((head * task.queries + t) * task.keys + first_key);
  for (int64_t i = 0; i < count; i += dropout_block)
    dropout_factors(task.dropout, sequence, element + static_cast<uint64_t>(i), smaller(dropout_block, count - i), factors + i);
}

Ints lane_index() {
  Ints index{};
  for (int64_t i = 0; i < lanes; ++i) index[i] = static_cast<int32_t>(i);
  return index;
}
inline Floats keep_first(Floats v, Ints index, int64_t count) { return index < static_cast<int32_t>(count) ? v : Floats{}; }

// Online softmax of one row of a tile: exponentials of the visible scores relative to the running maximum, zero up to
// `padded`. Returns the factor that rescales what was summed before.
float softmax_row(float* scores, int64_t count, int64_t padded, float& maximum_so_far, float& sum) {
  const Ints index = lane_index();
  float top = maximum_so_far;
  if (count > 0) {
    Floats best = broadcast(scores[0]);
    int64_t i = 0;
    for (; i + lanes <= count; i += lanes) best = maximum(best, load(scores + i));
    for (; i < count; ++i) best[0] = best[0] > scores[i] ? best[0] : scores[i];
    const float here = horizontal_maximum(best);
    top = here > top ? here : top;
  }
  Floats total{};
  for (int64_t i = 0; i < padded; i += lanes) {
    Floats e = i < count ? exponential(load(scores + i) - top) : Floats{};
    if (i + lanes > count) e = keep_first(e, index, count - i);
    total += e;
    store(scores + i, e);
  }
  const float factor = exponential(broadcast(maximum_so_far - top))[0];
  sum = sum * factor + horizontal_sum(total);
  maximum_so_far = top;
  return factor;
}

// What follows is for a single query, as each step of decoding has: keys and values are read once, so nothing is packed.

// sum over depth of a[i] * b[i], for `count` <= 4 rows of b.
template <int count>
inline void dot_rows(const float* a, const float* b, int64_t stride, int64_t depth, float scale, float* out) {
  Floats sums[count];
  for (int r = 0; r < count; ++r) sums[r] = Floats{};
  int64_t i = 0;
  for (; i + lanes <= depth; i += lanes)
#pragma GCC unroll 4
    for (int r = 0; r < count; ++r) sums[r] = multiply_add(load(a + i), load(b + r * stride + i), sums[r]);
  for (int r = 0; r < count; ++r) {
    float rest = 0.0f;
    for (int64_t j = i; j < depth; ++j) rest += a[j] * b[r * stride + j];
    out[r] = scale * (horizontal_sum(sums[r]) + rest);
  }
}

// sums[0, vectors * lanes) = factor * sums + sum over rows of weights[r] * rows[r].
template <int vectors>
inline void add_weighted_rows(const float* weights, const float* rows, int64_t stride, int64_t count, float factor, float* sums) {
  Floats total[vectors];
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) total[v] = factor * load(sums + v * lanes);
  for (int64_t r = 0; r < count; ++r, rows += stride) {
    __builtin_prefetch(rows + 8 * stride);
    const Floats weight = broadcast(weights[r]);
#pragma GCC unroll 4
    for (int v = 0; v < vectors; ++v) total[v] = multiply_add(weight, load(rows + v * lanes), total[v]);
  }
#pragma GCC unroll 4
  for (int v = 0; v < vectors; ++v) store(sums + v * lanes, total[v]);
}

void attend_one(const AttentionTask& task, int64_t batch, int64_t head, float* workspace) {
  const int64_t D = task.depth, H = task.heads, G = task.key_heads, stride = G * D;
  const float* query = task.query + (batch * H + head) * D;
  const int64_t start = (batch * task.keys * G + head / (H / G)) * D;
  const int64_t used = visible(task, 0, 0, task.held);
  float* scores = workspace;
  float* sums = scores + forward_stride;
  float top = -__builtin_inff(), total = 0.0f, factors[forward_keys];
  clear(sums, D);
  for (int64_t first = 0; first < used; first += forward_keys) {
    const int64_t count = smaller(forward_keys, used - first);
    const float* keys = task.key + start + first * stride;
    const float* values = task.value + start + first * stride;
    int64_t s = 0;
    for (; s + 4 <= count; s += 4) {
      for (int64_t r = 8; r < 12; ++r)
        for (int64_t i = 0; i < D; i += 16) __builtin_prefetch(keys + (s + r) * stride + i);
      dot_rows<4>(query, keys + s * stride, stride, D, task.scale, scores + s);
    }
    for (; s < count; ++s) dot_rows<1>(query, keys + s * stride, stride, D, task.scale, scores + s);
    const float factor = softmax_row(scores, count, round_up(count, lanes), top, total);
    if (task.dropout.active) {
      dropout_row(task, batch, head, 0, first, count, factors);
      for (int64_t i = 0; i < count; ++i) scores[i] *= factors[i];
    }
    int64_t d = 0;
    for (; d + 4 * lanes <= D; d += 4 * lanes) add_weighted_rows<4>(scores, values + d, stride, count, factor, sums + d);
    for (; d + lanes <= D; d += lanes) add_weighted_rows<1>(scores, values + d, stride, count, factor, sums + d);
    for (; d < D; ++d) {
      float sum = factor * sums[d];
      for (int64_t r = 0; r < count; ++r) sum += scores[r] * values[r * stride + d];
      sums[d] = sum;
    }
  }
  const float inverse = 1.0f / total;
  float* output = task.output + (batch * H + head) * D;
  for (int64_t i = 0; i < D; ++i) output[i] = sums[i] * inverse;
  if (task.log_sum_exp) task.log_sum_exp[batch * H + head] = top + __builtin_logf(total);
}

struct Panels {  // what is packed of the key side of one head
  float *keys_transposed, *values;
};

}  // namespace

int64_t attention_forward_workspace_floats(const AttentionTask& task) {
  if (task.queries == 1) return forward_stride + task.depth;
  const int64_t keys = round_up(task.held, tile_columns), width = round_up(task.depth, tile_columns);
  return round_up(keys * task.depth + task.held * width, 16) + round_up(forward_rows * task.depth, 16) + forward_rows * forward_stride +
         forward_rows * width;
}

void attention_forward(const AttentionTask& task, int64_t batch, int64_t head, int64_t begin, int64_t end, float* workspace) {
  if (task.queries == 1) return attend_one(task, batch, head, workspace);
  const int64_t D = task.depth, H = task.heads, G = task.key_heads, width = round_up(D, tile_columns);
  const int64_t query_stride = H * D, key_stride = G * D;
  const float* query = task.query + (batch * task.queries * H + head) * D;
  const int64_t key_start = (batch * task.keys * G + head / (H / G)) * D;
  float* output = task.output + (batch * task.queries * H + head) * D;
  const int64_t used = task.causal ? smaller(task.held, task.key_offset + end) : task.held;

  Panels panels{workspace, workspace + round_up(used, tile_columns) * D};
  float* rows = workspace + round_up(round_up(task.held, tile_columns) * D + task.held * width, 16);
  float* scores = rows + round_up(forward_rows * D, 16);
  float* sums = scores + forward_rows * forward_stride;  // [forward_rows, width]
  pack_right_transposed(task.key + key_start, key_stride, D, used, panels.keys_transposed);
  // Values in blocks of forward_keys, each block panels of its own: the order in which they are read.
  for (int64_t first = 0; first < used; first += forward_keys)
    pack_right(task.value + key_start + first * key_stride, key_stride, smaller(forward_keys, used - first), D,
               panels.values + first * width);

  float top[forward_rows], total[forward_rows], factors[forward_keys];
  for (int64_t t = begin; t < end; t += forward_rows) {
    const int64_t count = smaller(forward_rows, end - t);
    pack_rows(query + t * query_stride, query_stride, count, forward_rows, D, task.scale, rows);
    for (int64_t r = 0; r < forward_rows; ++r) top[r] = -__builtin_inff(), total[r] = 0.0f;
    clear(sums, forward_rows * width);
    const int64_t tile_end = task.causal ? smaller(used, task.key_offset + t + count) : used;
    for (int64_t first = 0; first < tile_end; first += forward_keys) {
      const int64_t keys = smaller(forward_keys, tile_end - first), packed = smaller(forward_keys, used - first);
      score_tile(task, rows, t, count, panels.keys_transposed + first * D, first, keys, scores, forward_stride);
      for (int64_t r = 0; r < count; ++r) {
        float* row = scores + r * forward_stride;
        const int64_t seen = visible(task, t + r, first, keys);
        const float factor = softmax_row(row, seen, round_up(keys, lanes), top[r], total[r]);
        if (first > 0 && factor != 1.0f)
          for (int64_t i = 0; i < width; i += lanes) store(sums + r * width + i, load(sums + r * width + i) * factor);
        if (task.dropout.active) {
          dropout_row(task, batch, head, t + r, first, seen, factors);
          for (int64_t i = 0; i < seen; ++i) row[i] *= factors[i];
        }
      }
      Tile tile;
      for (int64_t d = 0; d < width; d += tile_columns)
        for (int64_t r = 0; r < count; r += tile_rows) {
          const int64_t last_row = smaller(r + tile_rows, count) - 1;
          const int64_t seen = visible(task, t + last_row, first, keys);
          multiply_tile(seen, scores + r * forward_stride, forward_stride, 1, panels.values + first * width + d * packed, tile);
          add_tile(tile, sums + r * width + d, width);
        }
    }
    for (int64_t r = 0; r < count; ++r) {
      const float inverse = 1.0f / total[r];
      float* to = output + (t + r) * query_stride;
      for (int64_t i = 0; i < D; ++i) to[i] = sums[r * width + i] * inverse;
      if (task.log_sum_exp) task.log_sum_exp[(batch * H + head) * task.queries + t + r] = top[r] + __builtin_logf(total[r]);
    }
  }
}

int64_t attention_backward_workspace_floats(const AttentionTask& task) {
  const int64_t keys = round_up(task.keys, tile_columns), width = round_up(task.depth, tile_columns);
  const int64_t rows = round_up(backward_rows, tile_rows);
  return 2 * round_up(keys * task.depth, 16) + task.keys * width                 // keys and values transposed, keys
         + 2 * (round_up(task.keys, tile_rows) + tile_rows) * width              // sums of d_key and d_value
         + 2 * round_up(rows * task.depth, 16) + 2 * round_up(rows * width, 16)  // queries and d_output: rows, panels
         + rows * width + 2 * rows * backward_stride;                            // sums of d_query, scores, their gradient
}

namespace {

// The workspace of one backward call, cut up.
struct BackwardSpace {
  float *keys_transposed, *values_transposed, *keys, *d_key, *d_value;
  float *query_rows, *d_output_rows, *query_panels, *d_output_panels, *d_query, *scores, *d_scores;

  BackwardSpace(const AttentionTask& task, float* at) {
    const int64_t D = task.depth, keys_padded = round_up(task.keys, tile_columns), width = round_up(D, tile_columns);
    const int64_t rows = round_up(backward_rows, tile_rows);
    const auto take = [&at](int64_t count) {
      float* here = at;
      at += count;
      return here;
    };
    keys_transposed = take(round_up(keys_padded * D, 16));
    values_transposed = take(round_up(keys_padded * D, 16));
    keys = take(task.keys * width);
    d_key = take((round_up(task.keys, tile_rows) + tile_rows) * width);
    d_value = take((round_up(task.keys, tile_rows) + tile_rows) * width);
    query_rows = take(round_up(rows * D, 16));
    d_output_rows = take(round_up(rows * D, 16));
    query_panels = take(round_up(rows * width, 16));
    d_output_panels = take(round_up(rows * width, 16));
    d_query = take(rows * width);
    scores = take(rows * backward_stride);
    d_scores = take(rows * backward_stride);
  }
};

// Probabilities from scores and the saved log-sum-exp, and the gradient of the scores: dS = P (dP - delta), with dropout
// P m where the probabilities are used and dP m where their gradient is. Zero beyond `count`, up to the tile's stride.
void probability_row(const AttentionTask& task, int64_t batch, int64_t head, int64_t t, int64_t first_key, int64_t count, int64_t padded,
                     float log_sum_exp, float delta, float* scores, float* d_scores) {
  float factors[backward_keys + lanes];
  if (task.dropout.active) dropout_row(task, batch, head, t, first_key, count, factors);
  const Ints index = lane_index();
  for (int64_t i = 0; i < padded; i += lanes) {
    if (i >= count) {
      store(scores + i, Floats{});
      store(d_scores + i, Floats{});
      continue;
    }
    Floats p = exponential(load(scores + i) - log_sum_exp), d = load(d_scores + i);
    if (task.dropout.active) {
      const Floats factor = load(factors + i);
      d = p * (d * factor - delta);
      p *= factor;
    } else {
      d = p * (d - delta);
    }
    if (i + lanes > count) p = keep_first(p, index, count - i), d = keep_first(d, index, count - i);
    store(scores + i, p);
    store(d_scores + i, d);
  }
}

// d_key and d_value of the keys of a tile: sums over its queries of dS^T Q and P^T dO, from the first query that sees them.
void add_key_gradients(const AttentionTask& task, const BackwardSpace& space, int64_t t, int64_t rows, int64_t first, int64_t keys,
                       int64_t base, int64_t width) {
  Tile tile;
  for (int64_t d = 0; d < width; d += tile_columns)
    for (int64_t s = 0; s < keys; s += tile_rows) {
      int64_t start = 0;
      if (task.causal) start = larger(0, first + s - task.key_offset - t);
      if (start >= rows) continue;
      const int64_t offset = start * backward_stride + s, panel = d * rows + start * tile_columns;
      float* to = space.d_value + (first - base + s) * width + d;
      multiply_tile(rows - start, space.scores + offset, 1, backward_stride, space.d_output_panels + panel, tile);
      add_tile(tile, to, width);
      to = space.d_key + (first - base + s) * width + d;
      multiply_tile(rows - start, space.d_scores + offset, 1, backward_stride, space.query_panels + panel, tile);
      add_tile(tile, to, width);
    }
}

}  // namespace

void attention_backward(const AttentionBackwardTask& backward, int64_t batch, int64_t key_head, int64_t query_begin, int64_t query_end,
                        int64_t key_begin, int64_t key_end, float* workspace) {
  const AttentionTask& task = backward.forward;
  const int64_t D = task.depth, H = task.heads, G = task.key_heads, group = H / G, width = round_up(D, tile_columns);
  const int64_t query_stride = H * D, key_stride = G * D;
  const int64_t key_start = ((batch * task.keys + key_begin) * G + key_head) * D, key_count = key_end - key_begin;
  const BackwardSpace space(task, workspace);
  clear(space.d_key, (round_up(key_count, tile_rows) + tile_rows) * width);
  clear(space.d_value, (round_up(key_count, tile_rows) + tile_rows) * width);
  // Per block of backward_keys, because the last panel of a block is padded.
  const int64_t block_columns = round_up(backward_keys, tile_columns);
  for (int64_t first = 0, block = 0; first < key_count; first += backward_keys, ++block) {
    const int64_t keys = smaller(backward_keys, key_count - first), at = key_start + first * key_stride;
    pack_right_transposed(task.key + at, key_stride, D, keys, space.keys_transposed + block * block_columns * D);
    pack_right_transposed(task.value + at, key_stride, D, keys, space.values_transposed + block * block_columns * D);
    if (backward.query_part) pack_right(task.key + at, key_stride, keys, D, space.keys + first * width);
  }
  for (int64_t head = key_head * group; head < (key_head + 1) * group; ++head) {
    const int64_t query_start = (batch * task.queries * H + head) * D;
    for (int64_t t = query_begin; t < query_end; t += backward_rows) {
      const int64_t rows = smaller(backward_rows, query_end - t), padded = round_up(rows, tile_rows);
      const int64_t tile_end = task.causal ? smaller(key_end, task.key_offset + t + rows) : key_end;
      const float* d_output = backward.d_output + query_start + t * query_stride;
      const float* output = task.output + query_start + t * query_stride;
      if (tile_end > key_begin) {
        pack_rows(task.query + query_start + t * query_stride, query_stride, rows, padded, D, task.scale, space.query_rows);
        pack_rows(d_output, query_stride, rows, padded, D, 1.0f, space.d_output_rows);
        if (backward.key_part) {
          pack_right(space.query_rows, D, rows, D, space.query_panels);
          pack_right(space.d_output_rows, D, rows, D, space.d_output_panels);
        }
      }
      float delta[backward_rows];
      for (int64_t r = 0; r < rows; ++r) {
        float sum = 0.0f;
        for (int64_t i = 0; i < D; ++i) sum += d_output[r * query_stride + i] * output[r * query_stride + i];
        delta[r] = sum;
      }
      clear(space.d_query, padded * width);
      const float* log_sum_exp = task.log_sum_exp + (batch * H + head) * task.queries + t;
      for (int64_t first = key_begin, block = 0; first < tile_end; first += backward_keys, ++block) {
        const int64_t packed = smaller(backward_keys, key_end - first), keys = smaller(packed, tile_end - first);
        score_tile(task, space.query_rows, t, rows, space.keys_transposed + block * block_columns * D, first, keys, space.scores,
                   backward_stride);
        score_tile(task, space.d_output_rows, t, rows, space.values_transposed + block * block_columns * D, first, keys, space.d_scores,
                   backward_stride);
        const int64_t columns = round_up(round_up(keys, tile_rows), lanes);
        for (int64_t r = 0; r < rows; ++r)
          probability_row(task, batch, head, t + r, first, visible(task, t + r, first, keys), columns, log_sum_exp[r], delta[r],
                          space.scores + r * backward_stride, space.d_scores + r * backward_stride);
        if (backward.key_part) add_key_gradients(task, space, t, rows, first, keys, key_begin, width);
        if (!backward.query_part) continue;
        Tile tile;
        for (int64_t d = 0; d < width; d += tile_columns)
          for (int64_t r = 0; r < rows; r += tile_rows) {
            const int64_t seen = visible(task, t + smaller(r + tile_rows, rows) - 1, first, keys);
            if (seen == 0) continue;
            multiply_tile(seen, space.d_scores + r * backward_stride, backward_stride, 1,
                          space.keys + (first - key_begin) * width + d * packed, tile);
            add_tile(tile, space.d_query + r * width + d, width);
          }
      }
      if (!backward.query_part) continue;
      float* to = backward.d_query + query_start + t * query_stride;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t i = 0; i < D; ++i) to[r * query_stride + i] = space.d_query[r * width + i] * task.scale;
    }
  }
  if (!backward.key_part) return;
  for (int64_t s = 0; s < key_count; ++s)
    for (int64_t i = 0; i < D; ++i) {
      backward.d_key[key_start + s * key_stride + i] = space.d_key[s * width + i];
      backward.d_value[key_start + s * key_stride + i] = space.d_value[s * width + i];
    }
}

}  // namespace dmuon::DMUON_SIMD
