// Attention over tiles for one head at a time. Scores live in a tile of the workspace only; keys and values of the head
// are packed once per call.
#pragma once

#include <cstdint>

#include "backend/cpu/simd/dropout.h"

namespace dmuon::simd {

// Layouts as in kernels.h: query [B, T, H, D], key and value [B, S, G, D], log_sum_exp [B, H, T].
struct AttentionTask {
  int64_t queries = 0, keys = 0, heads = 0, key_heads = 0, depth = 0;  // T, S, H, G, D
  int64_t held = 0;                                                    // keys of this sequence, of S; the backward has all of them
  int64_t key_offset = 0;
  bool causal = true;
  float scale = 1;
  Dropout dropout;
  const float *query = nullptr, *key = nullptr, *value = nullptr;
  float *output = nullptr, *log_sum_exp = nullptr;
};
struct AttentionBackwardTask {
  AttentionTask forward;
  const float* d_output = nullptr;
  float *d_query = nullptr, *d_key = nullptr, *d_value = nullptr;
  bool query_part = true, key_part = true;  // which gradients a call writes
};

}  // namespace dmuon::simd
