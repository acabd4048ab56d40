// Declarations of one variant's functions, for the files of this folder; everyone else goes through the table.
#pragma once

#include "backend/cpu/simd/table.h"

namespace dmuon::DMUON_SIMD {

using namespace dmuon::simd;  // the argument structs

int64_t gemm_workspace_floats(int64_t m, int64_t n, int64_t k);
void gemm(const GemmTask& task);
int64_t attention_forward_workspace_floats(const AttentionTask& task);
void attention_forward(const AttentionTask& task, int64_t batch, int64_t head, int64_t begin, int64_t end, float* workspace);
int64_t attention_backward_workspace_floats(const AttentionTask& task);
void attention_backward(const AttentionBackwardTask& task, int64_t batch, int64_t key_head, int64_t query_begin, int64_t query_end,
                        int64_t key_begin, int64_t key_end, float* workspace);
void normalization_forward(const NormalizationForwardTask& task, int64_t begin, int64_t end);
void normalization_backward(const NormalizationBackwardTask& task, int64_t begin, int64_t end, const NormalizationPartials& partials);
void activation_forward(const ActivationTask& task, int64_t begin, int64_t end);
void activation_backward(const ActivationTask& task, int64_t begin, int64_t end, float* d_bias);
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

}  // namespace dmuon::DMUON_SIMD
