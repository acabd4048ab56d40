#include "backend/cpu/cpu_backend.h"

namespace dmuon::cpu {

void Normalization::forward(Stream& stream, const NormalizationForward& n) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  backend_.launch(
      stream, "normalization_forward", 0,
      {n.input, n.branch, n.branch_bias, n.residual, n.weight, n.bias, n.output, n.mean, n.inverse_deviation}, [=, &simd] {
        simd::NormalizationForwardTask task;
        task.rms = n.kind == NormalizationKind::rms_norm;
        task.epsilon = static_cast<float>(n.epsilon);
        task.columns = n.input.size(-1);
        task.input = n.input.data<float>(), task.branch = optional_data(n.branch), task.branch_bias = optional_data(n.branch_bias);
        task.dropout = dropout_of(n.dropout, n.input.elements());
        task.residual = optional_data(n.residual);
        task.weight = n.weight.data<float>(), task.bias = optional_data(n.bias);
        task.output = n.output.data<float>(), task.mean = optional_data(n.mean), task.inverse_deviation = n.inverse_deviation.data<float>();
        team.split(n.input.rows(), 1, 16384 / std::max<int64_t>(1, task.columns),
                   [&](int, int64_t begin, int64_t end) { simd.normalization_forward(task, begin, end); });
      });
}

void Normalization::backward(Stream& stream, const NormalizationBackward& n) {
  const Team team = backend_.team(stream);
  const simd::Table& simd = backend_.simd();
  const RowBlocks blocks(n.normalized_input.rows());
  const int64_t columns = n.normalized_input.size(-1), sums = blocks.count * columns;
  const Tensor partials = backend_.workspace(3 * sums, "partial sums of a normalisation backward");
  backend_.launch(stream, "normalization_backward", 0,
                  {n.d_output, n.d_residual, n.normalized_input, n.mean, n.inverse_deviation, n.weight, n.d_input, n.d_branch,
                   n.d_branch_bias, n.d_weight, n.d_bias, partials},
                  [=, &simd] {
                    if (columns == 0) return;
                    simd::NormalizationBackwardTask task;
                    task.rms = n.kind == NormalizationKind::rms_norm;
                    task.columns = columns;
                    task.d_output = n.d_output.data<float>(), task.d_residual = optional_data(n.d_residual);
                    task.normalized_input = n.normalized_input.data<float>();
                    task.mean = optional_data(n.mean), task.inverse_deviation = n.inverse_deviation.data<float>(),
                    task.weight = n.weight.data<float>();
                    task.dropout = dropout_of(n.dropout, n.normalized_input.elements());
                    task.d_input = n.d_input.data<float>(), task.d_branch = optional_data(n.d_branch);
                    float* weight_sums = partials.data<float>();
                    float *bias_sums = weight_sums + sums, *branch_sums = bias_sums + sums;
                    team.split(blocks.count, 1, 2, [&](int, int64_t begin, int64_t end) {
                      for (int64_t b = begin; b < end; ++b) {
                        simd::NormalizationPartials to;
                        if (n.d_weight.defined()) to.d_weight = weight_sums + b * columns;
                        if (n.d_bias.defined()) to.d_bias = bias_sums + b * columns;
                        if (n.d_branch_bias.defined()) to.d_branch_bias = branch_sums + b * columns;
                        simd.normalization_backward(task, blocks.begin(b), blocks.end(b), to);
                      }
                    });
                    if (n.d_weight.defined()) add_partials(simd, team, weight_sums, blocks.count, n.accumulate_weight, n.d_weight);
                    if (n.d_bias.defined()) add_partials(simd, team, bias_sums, blocks.count, n.accumulate_bias, n.d_bias);
                    if (n.d_branch_bias.defined())
                      add_partials(simd, team, branch_sums, blocks.count, n.accumulate_branch_bias, n.d_branch_bias);
                  });
}

}  // namespace dmuon::cpu
