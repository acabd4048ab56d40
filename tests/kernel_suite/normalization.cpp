#include <algorithm>

#include "dmuon/core/text.h"
#include "kernel_suite/comparison.h"

namespace kernel_suite {
namespace {

std::string name_of(NormalizationKind kind) { return kind == NormalizationKind::layer_norm ? "layer_norm" : "rms_norm"; }

enum class Branch { none, plain, biased, dropped, over_branch, over_input };
constexpr const char* branch_names[] = {
    "", " branch", " branch + bias", " dropout(branch + bias)", " residual over branch", " residual over input"};

struct Problem {
  NormalizationKind kind;
  int64_t rows, columns;
  Branch branch = Branch::none;
  bool bias = true;
  double mean = 0;  // of the input
};

DropoutMask mask_of(bool on, int64_t rows) {
  return {.probability = on ? 0.4 : 0.0, .seed = 99, .first_sequence = 3, .sequences = rows % 3 == 0 ? 3 : 1};
}

void forward(Comparison& compare, const Problem& p) {
  compare.start(text("normalization_forward, ", name_of(p.kind), " ", p.rows, "x", p.columns, branch_names[static_cast<int>(p.branch)],
                     p.bias ? "" : " no bias", " mean ", p.mean));
  const Shape shape{p.rows, p.columns};
  const bool has_branch = p.branch != Branch::none, has_bias = p.branch == Branch::biased || p.branch == Branch::dropped;
  const Twin input = compare.normal(shape, 1.0, p.mean);
  const Twin branch = has_branch ? compare.normal(shape) : Twin{};
  const Twin branch_bias = has_bias ? compare.normal({p.columns}) : Twin{};
  const Twin residual = !has_branch                       ? Twin{}
                        : p.branch == Branch::over_branch ? branch
                        : p.branch == Branch::over_input  ? input
                                                          : compare.output(shape);
  const Twin weight = compare.normal({p.columns}), bias = p.bias ? compare.normal({p.columns}) : Twin{};
  const Twin output = compare.output(shape), mean = compare.wide_output({p.rows}), inverse_deviation = compare.wide_output({p.rows});
  compare.on_both([&](Backend& backend, auto pick) {
    NormalizationForward arguments;
    arguments.kind = p.kind;
    arguments.input = pick(input);
    arguments.branch = pick(branch);
    arguments.branch_bias = pick(branch_bias);
    arguments.dropout = mask_of(p.branch == Branch::dropped, p.rows);
    arguments.residual = pick(residual);
    arguments.weight = pick(weight);
    arguments.bias = pick(bias);
    arguments.output = pick(output);
    arguments.mean = pick(mean);
    arguments.inverse_deviation = pick(inverse_deviation);
    backend.normalization().forward(backend.compute_stream(), arguments);
  });
  // A residual rounded to float32 stands beside an exact one: with one column the deviation is epsilon's.
  const auto width = static_cast<double>(p.columns);
  const double cancelled = (p.columns == 1 ? 320 : 10) + p.mean;
  if (has_branch) compare.check("residual", residual);
  if (p.kind == NormalizationKind::layer_norm) compare.check("mean", mean, {.reduction = width, .magnitude = 1});
  compare.check("inverse_deviation", inverse_deviation, {.reduction = width, .magnitude = cancelled});
  compare.check("output", output, {.reduction = width, .magnitude = cancelled});
}

struct BackwardProblem {
  NormalizationKind kind;
  int64_t rows, columns;
  bool residual = false, bias = true, accumulate = false, branch = false, branch_bias = false;
  enum { apart, over_output, over_residual } place = apart;  // of d_input
};

void backward(Comparison& compare, const BackwardProblem& p) {
  constexpr const char* places[] = {"", " over d_output", " over d_residual"};
  compare.start(text("normalization_backward, ", name_of(p.kind), " ", p.rows, "x", p.columns, p.residual ? " d_residual" : "",
                     p.bias ? "" : " no bias", p.accumulate ? " accumulate" : "", p.branch ? " d_branch" : "",
                     p.branch_bias ? " d_branch_bias" : "", places[p.place]));
  const Shape shape{p.rows, p.columns};
  const Twin d_output = compare.normal(shape), d_residual = p.residual ? compare.normal(shape) : Twin{};
  const Twin input = compare.normal(shape, 1.0, 0.5);
  // Any statistics will do: the backward takes them as given.
  const Twin mean = compare.wide_normal({p.rows}, 0.1, 0.5), inverse_deviation = compare.wide_positive({p.rows});
  const Twin weight = compare.normal({p.columns});
  const Twin d_input = p.place == p.over_output ? d_output : p.place == p.over_residual ? d_residual : compare.output(shape);
  const Twin d_branch = p.branch ? compare.output(shape) : Twin{};
  const Twin d_branch_bias = p.branch_bias ? compare.wide_sum_output({p.columns}, p.accumulate) : Twin{};
  const Twin d_weight = compare.wide_sum_output({p.columns}, p.accumulate);
  const Twin d_bias = p.bias ? compare.wide_sum_output({p.columns}, p.accumulate) : Twin{};
  compare.on_both([&](Backend& backend, auto pick) {
    NormalizationBackward arguments;
    arguments.kind = p.kind;
    arguments.d_output = pick(d_output);
    arguments.d_residual = pick(d_residual);
    arguments.normalized_input = pick(input);
    arguments.mean = pick(mean);
    arguments.inverse_deviation = pick(inverse_deviation);
    arguments.weight = pick(weight);
    arguments.dropout = mask_of(p.branch, p.rows);
    arguments.d_input = pick(d_input);
    arguments.d_branch = pick(d_branch);
    arguments.d_branch_bias = pick(d_branch_bias);
    arguments.d_weight = pick(d_weight);
    arguments.d_bias = pick(d_bias);
    arguments.accumulate_branch_bias = arguments.accumulate_weight = arguments.accumulate_bias = p.accumulate;
    backend.normalization().backward(backend.compute_stream(), arguments);
  });
  const auto width = static_cast<double>(p.columns), height = static_cast<double>(p.rows);
  const Tolerance along_row{.reduction = width, .magnitude = 10}, along_column{.reduction = height, .magnitude = 10};
  compare.check("d_input", d_input, along_row);
  compare.check("d_weight", d_weight, along_column);
  if (p.bias) compare.check("d_bias", d_bias, along_column);
  if (p.branch) compare.check("d_branch", d_branch, along_row);
  if (p.branch_bias) compare.check("d_branch_bias", d_branch_bias, {.reduction = std::max(width, height), .magnitude = 10});
}

}  // namespace

OutputBits compare_normalization_kernels(Backend& tested, Backend& reference, const Precision& precision) {
  Comparison compare(tested, reference, precision);
  using Sizes = std::vector<int64_t>;
  const Sizes row_counts = precision.thorough() ? Sizes{1, 3, 17} : Sizes{1, 6},
              widths = precision.thorough() ? Sizes{1, 7, 36, 52, 65, 1600} : Sizes{7, 36, 264};
  for (NormalizationKind kind : {NormalizationKind::layer_norm, NormalizationKind::rms_norm}) {
    for (int64_t rows : row_counts)
      for (int64_t columns : widths) {
        for (Branch branch : {Branch::none, Branch::plain, Branch::biased, Branch::dropped, Branch::over_branch, Branch::over_input})
          forward(compare, {.kind = kind, .rows = rows, .columns = columns, .branch = branch});
        forward(compare, {.kind = kind, .rows = rows, .columns = columns, .branch = Branch::plain, .bias = false});
        backward(compare, {.kind = kind, .rows = rows, .columns = columns});
        backward(compare, {.kind = kind, .rows = rows, .columns = columns, .bias = false, .place = BackwardProblem::over_output});
        backward(compare, {.kind = kind, .rows = rows, .columns = columns, .residual = true, .accumulate = true, .branch_bias = true});
        backward(compare, {.kind = kind, .rows = rows, .columns = columns, .residual = true, .place = BackwardProblem::over_residual});
        backward(compare, {.kind = kind,
                           .rows = rows,
                           .columns = columns,
                           .residual = true,
                           .accumulate = true,
                           .branch = true,
                           .branch_bias = true,
                           .place = BackwardProblem::over_residual});
        backward(compare, {.kind = kind, .rows = rows, .columns = columns, .branch = true, .branch_bias = true});
      }
    if (!precision.thorough()) continue;
    forward(compare, {.kind = kind, .rows = 17, .columns = 65, .mean = 3000});  // sum of squares minus squared sum fails here
    backward(compare, {.kind = kind, .rows = 300, .columns = 65, .residual = true, .branch = true, .branch_bias = true});
  }
  return std::move(compare).bits();
}

}  // namespace kernel_suite
