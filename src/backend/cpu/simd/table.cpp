#include "backend/cpu/simd/table.h"

#include "backend/cpu/simd/functions.h"
#include "backend/cpu/simd/gemm_kernel.h"
#include "backend/cpu/simd/math.h"
#include "backend/cpu/simd/rows.h"

#define DMUON_SIMD_STRING_OF(name) #name
#define DMUON_SIMD_STRING(name) DMUON_SIMD_STRING_OF(name)

namespace dmuon::DMUON_SIMD {
namespace {

void exponentials(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += lanes) store_row(y + i, exponential(load_row(x + i, count - i)), count - i);
}
void normal_distributions(const float* x, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += lanes) store_row(y + i, normal_distribution(load_row(x + i, count - i)).cumulative, count - i);
}

}  // namespace

extern const Table table;
const Table table = {
    .name = DMUON_SIMD_STRING(DMUON_SIMD),
    .tile_rows = tile_rows,
    .tile_columns = tile_columns,
    .gemm_workspace_floats = gemm_workspace_floats,
    .gemm = gemm,
    .few_rows_product = few_rows_product,
    .attention_forward_workspace_floats = attention_forward_workspace_floats,
    .attention_forward = attention_forward,
    .attention_backward_workspace_floats = attention_backward_workspace_floats,
    .attention_backward = attention_backward,
    .normalization_forward = normalization_forward,
    .normalization_backward = normalization_backward,
    .activation_forward = activation_forward,
    .activation_backward = activation_backward,
    .rotary_forward = rotary_forward,
    .rotary_backward = rotary_backward,
    .column_sum = column_sum,
    .embedding_forward = embedding_forward,
    .softmax_cross_entropy = softmax_cross_entropy,
    .add_partials = add_partials,
    .embedding_backward = embedding_backward,
    .swiglu_forward = swiglu_forward,
    .swiglu_backward = swiglu_backward,
    .scaled_add = scaled_add,
    .apply_dropout = apply_dropout,
    .adamw = adamw,
    .sgd = sgd,
    .muon_apply = muon_apply,
    .narrow_to_bfloat16 = narrow_to_bfloat16,
    .widen_bfloat16 = widen_bfloat16,
    .count_non_finite = count_non_finite,
    .muon_momentum = muon_momentum,
    .square_sums = square_sums,
    .chunk_sums = chunk_sums,
    .pack_signs = pack_signs,
    .apply_signs = apply_signs,
    .unpack_signs = unpack_signs,
    .expand_signs = expand_signs,
    .threshold_signs = threshold_signs,
    .vote_signs = vote_signs,
    .any_signs = any_signs,
    .count_signs = count_signs,
    .vote_counts = vote_counts,
    .exponentials = exponentials,
    .normal_distributions = normal_distributions,
};

}  // namespace dmuon::DMUON_SIMD
