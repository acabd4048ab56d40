#include <limits>

#include "dmuon/core/text.h"
#include "kernel_suite/comparison.h"

namespace kernel_suite {
namespace {

struct Embedding {
  int64_t B, T, C, V = 11;
  bool positions = true;
  double dropout = 0;
  bool accumulate = false;
};

void embedding(Comparison& compare, const Embedding& e) {
  compare.start(text("embedding, B", e.B, " T", e.T, " C", e.C, " V", e.V, e.positions ? " positions" : "", " dropout ", e.dropout,
                     e.accumulate ? " accumulate" : ""));
  const Twin tokens = compare.below(e.V, {e.B, e.T});  // with repeats, and rows that no token names
  const Twin positions = e.positions ? compare.below(e.T + 2, {e.B, e.T}) : Twin{};
  const Twin token_table = compare.normal({e.V, e.C}), position_table = e.positions ? compare.normal({e.T + 2, e.C}) : Twin{};
  const Twin output = compare.output({e.B, e.T, e.C}), d_output = compare.normal({e.B, e.T, e.C});
  const Twin d_token_table = compare.wide_sum_output({e.V, e.C}, e.accumulate);
  const Twin d_position_table = e.positions ? compare.wide_sum_output({e.T + 2, e.C}, e.accumulate) : Twin{};
  const DropoutMask mask{.probability = e.dropout, .seed = 5, .first_sequence = 40, .sequences = e.B};
  compare.on_both([&](Backend& backend, auto pick) {
    EmbeddingForward forward;
    forward.tokens = pick(tokens);
    forward.positions = pick(positions);
    forward.token_table = pick(token_table);
    forward.position_table = pick(position_table);
    forward.dropout = mask;
    forward.output = pick(output);
    backend.embedding_loss().embedding_forward(backend.compute_stream(), forward);
    EmbeddingBackward backward;
    backward.tokens = pick(tokens);
    backward.positions = pick(positions);
    backward.dropout = mask;
    backward.d_output = pick(d_output);
    backward.d_token_table = pick(d_token_table);
    backward.d_position_table = pick(d_position_table);
    backward.accumulate_token_table = backward.accumulate_position_table = e.accumulate;
    backend.embedding_loss().embedding_backward(backend.compute_stream(), backward);
  });
  compare.check("output", output);
  const auto repeats = static_cast<double>(e.B * e.T);
  compare.check("d_token_table", d_token_table, {.reduction = repeats});
  if (e.positions) compare.check("d_position_table", d_position_table, {.reduction = repeats});
}

struct Loss {
  int64_t rows, columns, classes;
  bool gradient = true;
  int64_t masked_every = 0;
  double deviation = 1;
};

// Columns beyond the classes hold NaN or huge numbers: they take no part.
void cross_entropy(Comparison& compare, const Loss& l) {
  compare.start(text("softmax_cross_entropy, ", l.rows, "x", l.columns, " classes ", l.classes, l.gradient ? " gradient" : "",
                     " masked every ", l.masked_every, " deviation ", l.deviation));
  const Twin drawn = compare.normal({l.rows, l.columns}, l.deviation);
  std::vector<double> values = to_doubles(compare.tested(), drawn.tested);
  for (int64_t n = 0; n < l.rows; ++n)
    for (int64_t j = l.classes; j < l.columns; ++j)
      values[static_cast<size_t>(n * l.columns + j)] = j % 2 == 0 ? 0x1p99 : std::numeric_limits<double>::quiet_NaN();
  const Twin logits = compare.values({l.rows, l.columns}, values);
  const uint64_t before = compare.bits_of(logits.tested);
  const Twin targets = compare.below(l.classes, {l.rows}, l.masked_every), losses = compare.wide_output({l.rows});
  compare.on_both([&](Backend& backend, auto pick) {
    SoftmaxCrossEntropy arguments;
    arguments.logits = pick(logits);
    arguments.targets = pick(targets);
    arguments.losses = pick(losses);
    arguments.classes = l.classes;
    arguments.write_gradient = l.gradient;
    arguments.gradient_scale = 0.125;
    backend.embedding_loss().softmax_cross_entropy(backend.compute_stream(), arguments);
  });
  const auto terms = static_cast<double>(l.classes);
  compare.check("losses", losses, {.reduction = terms, .magnitude = 4 * l.deviation});
  compare.check("logits", logits, {.reduction = terms, .magnitude = l.gradient ? 0.125 * l.deviation / terms : 0});
  if (!l.gradient) compare.check_unchanged("logits", before, logits.tested);
}

}  // namespace

OutputBits compare_embedding_loss_kernels(Backend& tested, Backend& reference, const Precision& precision) {
  Comparison compare(tested, reference, precision);
  using Sizes = std::vector<int64_t>;
  using Columns = std::vector<std::pair<int64_t, int64_t>>;
  const Sizes widths = precision.thorough() ? Sizes{1, 7, 36, 52, 65, 1600} : Sizes{7, 64},
              row_counts = precision.thorough() ? Sizes{1, 3, 17} : Sizes{3};
  const Columns columns_and_classes = precision.thorough()
                                          ? Columns{{1, 1}, {7, 7}, {36, 36}, {65, 65}, {1600, 1600}, {64, 52}, {1600, 1537}}
                                          : Columns{{7, 7}, {64, 52}, {1600, 1537}};
  for (int64_t C : widths)
    for (bool accumulate : {false, true}) {
      embedding(compare, {.B = 1, .T = 1, .C = C, .accumulate = accumulate});
      embedding(compare, {.B = 2, .T = 17, .C = C, .accumulate = accumulate});
      embedding(compare, {.B = 3, .T = 5, .C = C, .V = 40, .positions = false, .accumulate = accumulate});
      embedding(compare, {.B = 3, .T = 5, .C = C, .dropout = 0.3, .accumulate = accumulate});
    }
  // Frequent rows, which the CUDA backend adds in segments of 64: one short of a second segment and one over, all tokens equal, and
  // several frequent rows behind one another.
  for (int64_t C : precision.thorough() ? Sizes{7, 72} : Sizes{7})
    for (bool accumulate : {false, true}) {
      for (int64_t T : {64, 65, 128, 201})
        embedding(compare, {.B = 1, .T = T, .C = C, .V = 1, .positions = false, .accumulate = accumulate});
      embedding(compare, {.B = 5, .T = 67, .C = C, .V = 3, .dropout = 0.3, .accumulate = accumulate});
    }
  for (int64_t rows : row_counts)
    for (auto [columns, classes] : columns_and_classes)
      for (double deviation : {1.0, 20.0})
        for (bool gradient : {false, true}) {
          cross_entropy(compare, {.rows = rows, .columns = columns, .classes = classes, .gradient = gradient, .deviation = deviation});
          cross_entropy(
              compare,
              {.rows = rows, .columns = columns, .classes = classes, .gradient = gradient, .masked_every = 2, .deviation = deviation});
        }
  return std::move(compare).bits();
}

}  // namespace kernel_suite
