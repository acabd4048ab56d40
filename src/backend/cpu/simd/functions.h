// Declarations of one variant's functions, for the files of this folder; everyone else goes through the table.
#pragma once

#include "backend/cpu/simd/table.h"

namespace dmuon::DMUON_SIMD {

using namespace dmuon::simd;  // the argument structs

int64_t gemm_workspace_floats(int64_t m, int64_t n, int64_t k);
void gemm(const GemmTask& task);
void few_rows_product(const FewRowsTask& task, int64_t begin, int64_t end);
int64_t attention_forward_workspace_floats(const AttentionTask& task);
void attention_forward(const AttentionTask& task, int64_t batch, int64_t head, int64_t begin, int64_t end, float* workspace);
int64_t attention_backward_workspace_floats(const AttentionTask& task);
void attention_backward(const AttentionBackwardTask& task, int64_t batch, int64_t key_head, int64_t query_begin, int64_t query_end,
                        int64_t key_begin, int64_t key_end, float* workspace);
void normalization_forward(const NormalizationForwardTask& task, int64_t begin, int64_t end);
void normalization_backward(const NormalizationBackwardTask& task, int64_t begin, int64_t end, const NormalizationPartials& partials);
void activation_forward(const ActivationTask& task, int64_t begin, int64_t end);
void activation_backward(const ActivationTask& task, int64_t begin, int64_t end, float* d_bias);
void rotary_forward(const RotaryTask& task, int64_t begin, int64_t end);
void rotary_backward(const RotaryTask& task, int64_t begin, int64_t end, float* d_weight);
void swiglu_forward(const SwiGluTask& task, int64_t begin, int64_t end);
void swiglu_backward(const SwiGluTask& task, int64_t begin, int64_t end);
void column_sum(const float* in, int64_t columns, int64_t begin, int64_t end, float* out);
void embedding_forward(const EmbeddingTask& task, int64_t begin, int64_t end);
void softmax_cross_entropy(const CrossEntropyTask& task, int64_t begin, int64_t end);
void add_partials(const float* partials, int64_t blocks, int64_t columns, bool accumulate, float* out, int64_t begin, int64_t end);
void embedding_backward(const EmbeddingTask& task, const int32_t* indices, float* table, int64_t rows, int64_t begin, int64_t end);
void scaled_add(const float* x, float* y, float alpha, bool accumulate, int64_t begin, int64_t end);
void apply_dropout(const Dropout& dropout, const float* in, float* out, int64_t begin, int64_t end);
void adamw(const AdamWTask& task, int64_t begin, int64_t end);
void sgd(const SgdTask& task, int64_t begin, int64_t end);
void muon_apply(const MuonApplyTask& task, int64_t begin, int64_t end);
// bfloat16 as its bits, rounded to nearest even; NaN stays NaN.
void narrow_to_bfloat16(const float* in, uint16_t* out, int64_t begin, int64_t end);
void widen_bfloat16(const uint16_t* in, float* out, int64_t begin, int64_t end);
int64_t count_non_finite(const float* in, int64_t begin, int64_t end);
void muon_momentum(const MuonMomentumTask& task, int64_t begin, int64_t end);
void square_sums(const float* in, int64_t elements, int64_t chunk, double* out, int64_t begin, int64_t end);
void chunk_sums(const float* in, int64_t elements, int64_t chunk, double* out, int64_t begin, int64_t end);
// Elements [begin, end) of a piece, begin at a word; `segment` holds element begin.
void pack_signs(const PackSignsTask& task, int64_t begin, int64_t end, int64_t segment);
void apply_signs(const ApplySignsTask& task, int64_t begin, int64_t end, int64_t segment);
void unpack_signs(const UnpackSignsTask& task, int64_t begin, int64_t end, int64_t segment);
// Words [begin, end). vote_signs takes an odd number of inputs.
void expand_signs(const uint64_t* words, void* out, int64_t size, int8_t set, int8_t clear, int64_t begin, int64_t end);
void threshold_signs(const void* in, int64_t size, uint64_t* words, int64_t begin, int64_t end);
void vote_signs(const SignInputs& inputs, uint64_t* result, int64_t begin, int64_t end);
void any_signs(const SignInputs& inputs, uint64_t* result, int64_t begin, int64_t end);
void count_signs(const SignInputs& inputs, const SignPlanes& out, int64_t begin, int64_t end);
void vote_counts(const SignPlanes* nodes, int64_t node_count, int64_t threshold, uint64_t* result, int64_t begin, int64_t end);

}  // namespace dmuon::DMUON_SIMD
