// The functions every instruction-set variant exports, as a table of pointers chosen once at run time. They take plain
// pointers and ranges of work: threads, tensors and shapes are the callers' concern.
#pragma once

#include <cstdint>

#include "backend/cpu/simd/attention.h"
#include "backend/cpu/simd/few_rows.h"
#include "backend/cpu/simd/gemm.h"
#include "backend/cpu/simd/optimizer.h"
#include "backend/cpu/simd/row_kernels.h"
#include "backend/cpu/simd/signs.h"

namespace dmuon::simd {

struct Table {
  const char* name;                 // "baseline", "avx2", "avx512"
  int64_t tile_rows, tile_columns;  // of the register tile: cuts of a product between threads fall on multiples

  int64_t (*gemm_workspace_floats)(int64_t m, int64_t n, int64_t k);
  void (*gemm)(const GemmTask& task);
  // Columns [begin, end).
  void (*few_rows_product)(const FewRowsTask& task, int64_t begin, int64_t end);

  // Queries [begin, end) of one head.
  int64_t (*attention_forward_workspace_floats)(const AttentionTask& task);
  void (*attention_forward)(const AttentionTask& task, int64_t batch, int64_t head, int64_t begin, int64_t end, float* workspace);
  // All query heads of one key head. query_part needs all keys, key_part all queries.
  int64_t (*attention_backward_workspace_floats)(const AttentionTask& task);
  void (*attention_backward)(const AttentionBackwardTask& task, int64_t batch, int64_t key_head, int64_t query_begin, int64_t query_end,
                             int64_t key_begin, int64_t key_end, float* workspace);

  // Rows [begin, end).
  void (*normalization_forward)(const NormalizationForwardTask& task, int64_t begin, int64_t end);
  void (*normalization_backward)(const NormalizationBackwardTask& task, int64_t begin, int64_t end, const NormalizationPartials& partials);
  void (*activation_forward)(const ActivationTask& task, int64_t begin, int64_t end);
  void (*activation_backward)(const ActivationTask& task, int64_t begin, int64_t end, float* d_bias);
  void (*rotary_forward)(const RotaryTask& task, int64_t begin, int64_t end);
  void (*rotary_backward)(const RotaryTask& task, int64_t begin, int64_t end, float* d_weight);
  void (*column_sum)(const float* in, int64_t columns, int64_t begin, int64_t end, float* out);
  void (*embedding_forward)(const EmbeddingTask& task, int64_t begin, int64_t end);
  void (*softmax_cross_entropy)(const CrossEntropyTask& task, int64_t begin, int64_t end);
  // Columns [begin, end): partial sums [blocks, columns] added in order; rows of a gradient added to a table's rows.
  void (*add_partials)(const float* partials, int64_t blocks, int64_t columns, bool accumulate, float* out, int64_t begin, int64_t end);
  void (*embedding_backward)(const EmbeddingTask& task, const int32_t* indices, float* table, int64_t rows, int64_t begin, int64_t end);
  // Elements [begin, end).
  void (*swiglu_forward)(const SwiGluTask& task, int64_t begin, int64_t end);
  void (*swiglu_backward)(const SwiGluTask& task, int64_t begin, int64_t end);
  void (*scaled_add)(const float* x, float* y, float alpha, bool accumulate, int64_t begin, int64_t end);
  void (*apply_dropout)(const Dropout& dropout, const float* in, float* out, int64_t begin, int64_t end);
  void (*adamw)(const AdamWTask& task, int64_t begin, int64_t end);
  void (*sgd)(const SgdTask& task, int64_t begin, int64_t end);
  void (*muon_apply)(const MuonApplyTask& task, int64_t begin, int64_t end);
  // bfloat16 as its bits, rounded to nearest even; NaN stays NaN.
  void (*narrow_to_bfloat16)(const float* in, uint16_t* out, int64_t begin, int64_t end);
  void (*widen_bfloat16)(const uint16_t* in, float* out, int64_t begin, int64_t end);
  int64_t (*count_non_finite)(const float* in, int64_t begin, int64_t end);
  // Chunks [begin, end) of `chunk` elements.
  void (*muon_momentum)(const MuonMomentumTask& task, int64_t begin, int64_t end);
  void (*square_sums)(const float* in, int64_t elements, int64_t chunk, double* out, int64_t begin, int64_t end);
  void (*chunk_sums)(const float* in, int64_t elements, int64_t chunk, double* out, int64_t begin, int64_t end);

  // Elements [begin, end) of a piece, begin at a word; `segment` holds element begin.
  void (*pack_signs)(const PackSignsTask& task, int64_t begin, int64_t end, int64_t segment);
  void (*apply_signs)(const ApplySignsTask& task, int64_t begin, int64_t end, int64_t segment);
  void (*unpack_signs)(const UnpackSignsTask& task, int64_t begin, int64_t end, int64_t segment);
  // Words [begin, end). vote_signs takes an odd number of inputs.
  void (*expand_signs)(const uint64_t* words, void* out, int64_t size, int8_t set, int8_t clear, int64_t begin, int64_t end);
  void (*threshold_signs)(const void* in, int64_t size, uint64_t* words, int64_t begin, int64_t end);
  void (*vote_signs)(const SignInputs& inputs, uint64_t* result, int64_t begin, int64_t end);
  void (*any_signs)(const SignInputs& inputs, uint64_t* result, int64_t begin, int64_t end);
  void (*count_signs)(const SignInputs& inputs, const SignPlanes& out, int64_t begin, int64_t end);
  void (*vote_counts)(const SignPlanes* nodes, int64_t node_count, int64_t threshold, uint64_t* result, int64_t begin, int64_t end);

  // y[i] = exp(x[i]) and the normal distribution function of x[i], for the accuracy tests.
  void (*exponentials)(const float* x, float* y, int64_t count);
  void (*normal_distributions)(const float* x, float* y, int64_t count);
};

}  // namespace dmuon::simd
