#include "dmuon/core/text.h"
#include "kernel_suite/comparison.h"

namespace kernel_suite {
namespace {

std::string name_of(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::gelu:
      return "gelu";
    case ActivationKind::gelu_tanh:
      return "gelu_tanh";
    case ActivationKind::relu_squared:
      return "relu_squared";
  }
  return "";
}

void forward(Comparison& compare, ActivationKind kind, int64_t rows, int64_t columns, bool bias, bool in_place) {
  compare.start(text("activation_forward, ", name_of(kind), " ", rows, "x", columns, bias ? " bias" : "", in_place ? " in place" : ""));
  const Twin input = compare.normal({rows, columns}, 3.0), added = bias ? compare.normal({columns}) : Twin{};
  const Twin output = in_place ? input : compare.output({rows, columns});
  compare.on_both([&](Backend& backend, auto pick) {
    ActivationForward arguments;
    arguments.kind = kind;
    arguments.input = pick(input);
    arguments.bias = pick(added);
    arguments.output = pick(output);
    backend.activation().forward(backend.compute_stream(), arguments);
  });
  compare.check("output", output);
}

void backward(Comparison& compare, ActivationKind kind, int64_t rows, int64_t columns, bool bias, bool in_place, bool accumulate) {
  compare.start(text("activation_backward, ", name_of(kind), " ", rows, "x", columns, bias ? " bias" : "", in_place ? " in place" : "",
                     accumulate ? " accumulate" : ""));
  const Twin input = compare.normal({rows, columns}, 3.0), added = bias ? compare.normal({columns}) : Twin{};
  const Twin d_output = compare.normal({rows, columns}), d_input = in_place ? d_output : compare.output({rows, columns});
  const Twin d_bias = bias ? compare.wide_sum_output({columns}, accumulate) : Twin{};
  compare.on_both([&](Backend& backend, auto pick) {
    ActivationBackward arguments;
    arguments.kind = kind;
    arguments.input = pick(input);
    arguments.bias = pick(added);
    arguments.d_output = pick(d_output);
    arguments.d_input = pick(d_input);
    arguments.d_bias = pick(d_bias);
    arguments.accumulate_bias = accumulate;
    backend.activation().backward(backend.compute_stream(), arguments);
  });
  compare.check("d_input", d_input, {.magnitude = 1});
  if (bias) compare.check("d_bias", d_bias, {.reduction = static_cast<double>(rows), .magnitude = 1});
}

// Where approximations of exp, erf and tanh break: zeros, tails, the smallest numbers.
void extremes(Comparison& compare, ActivationKind kind) {
  compare.start(text("activation_forward, ", name_of(kind), " extremes"));
  const std::vector<double> points = {0.0, -0.0, 1e-30, -1e-30, 1e-5, -1e-5, 5, -5, 9, -9, 20, -20, 88, -88, 1000, -1000, 1e10, -1e10};
  const auto count = static_cast<int64_t>(points.size());
  std::vector<double> singles;
  for (double point : points) singles.push_back(static_cast<float>(point));
  for (int64_t i = 0; i < count; ++i) {
    const Twin input = compare.values({1}, {singles[static_cast<size_t>(i)]}), output = compare.output({1}), slope = compare.output({1});
    const Twin one = compare.values({1}, {1.0});
    compare.on_both([&](Backend& backend, auto pick) {
      ActivationForward arguments;
      arguments.kind = kind;
      arguments.input = pick(input);
      arguments.output = pick(output);
      backend.activation().forward(backend.compute_stream(), arguments);
      ActivationBackward gradient;
      gradient.kind = kind;
      gradient.input = pick(input);
      gradient.d_output = pick(one);
      gradient.d_input = pick(slope);
      backend.activation().backward(backend.compute_stream(), gradient);
    });
    compare.check(text("output of ", singles[static_cast<size_t>(i)], " (", i, ")").c_str(), output, {.magnitude = 1});
    compare.check(text("slope at ", singles[static_cast<size_t>(i)], " (", i, ")").c_str(), slope, {.magnitude = 1});
  }
}

void scaled_add(Comparison& compare, int64_t elements, bool accumulate) {
  compare.start(text("scaled_add, ", elements, accumulate ? " accumulate" : ""));
  const Twin x = compare.normal({elements}), y = compare.sum_output({elements}, accumulate);
  compare.on_both([&](Backend& backend, auto pick) {
    ScaledAdd arguments;
    arguments.x = pick(x);
    arguments.y = pick(y);
    arguments.alpha = -0.3;
    arguments.accumulate = accumulate;
    backend.activation().scaled_add(backend.compute_stream(), arguments);
  });
  compare.check("y", y);
}

void dropout(Comparison& compare, int64_t sequences, int64_t elements, double probability, bool in_place) {
  compare.start(text("dropout, ", sequences, " sequences of ", elements, " probability ", probability, in_place ? " in place" : ""));
  const Twin in = compare.normal({sequences, elements}), out = in_place ? in : compare.output({sequences, elements});
  compare.on_both([&](Backend& backend, auto pick) {
    ApplyDropout arguments;
    arguments.in = pick(in);
    arguments.out = pick(out);
    arguments.mask = {.probability = probability, .seed = 1234567890123u, .first_sequence = 1000, .sequences = sequences};
    backend.activation().dropout(backend.compute_stream(), arguments);
  });
  compare.check("out", out, {.magnitude = 0});
}

}  // namespace

OutputBits compare_activation_kernels(Backend& tested, Backend& reference, const Precision& precision) {
  Comparison compare(tested, reference, precision);
  using Sizes = std::vector<int64_t>;
  const Sizes row_counts = precision.thorough() ? Sizes{1, 3, 17, 300} : Sizes{1, 19};
  const Sizes widths = precision.thorough() ? Sizes{1, 7, 36, 52, 65, 1600} : Sizes{7, 64},
              lengths = precision.thorough() ? Sizes{1, 7, 1600, 70001} : Sizes{1, 4099};
  for (ActivationKind kind : {ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::relu_squared}) {
    extremes(compare, kind);
    for (int64_t rows : row_counts)
      for (int64_t columns : widths) {
        if (rows * columns > 100000) continue;
        for (bool bias : {false, true})
          for (bool in_place : {false, true}) {
            forward(compare, kind, rows, columns, bias, in_place);
            backward(compare, kind, rows, columns, bias, in_place, false);
            if (bias) backward(compare, kind, rows, columns, bias, in_place, true);
          }
      }
  }
  for (int64_t elements : lengths)
    for (bool accumulate : {false, true}) scaled_add(compare, elements, accumulate);
  for (auto [sequences, elements] : {std::pair<int64_t, int64_t>{1, 1}, {3, 7}, {2, 1600}, {5, 4097}})
    for (double probability : {0.0, 0.1, 0.75})
      for (bool in_place : {false, true}) dropout(compare, sequences, elements, probability, in_place);
  compare_swiglu_kernels(compare, precision);
  return std::move(compare).bits();
}

}  // namespace kernel_suite
