#include "dmuon/core/text.h"
#include "kernel_suite/comparison.h"

namespace kernel_suite {
namespace {

struct Problem {
  int64_t rows, heads, channels;
  bool weight = false, in_place = false;
  double theta = 10000.0;
};

// Sequences that share positions, far ones among them: 131071 is the last of the longest published context.
std::vector<double> positions_of(int64_t rows) {
  std::vector<double> positions;
  for (int64_t i = 0; i < rows; ++i) positions.push_back(i % 7 == 6 ? static_cast<double>(131071 - i) : static_cast<double>(i % 5 * 40));
  return positions;
}

std::string name_of(const Problem& p) {
  return text(p.rows, "x", p.heads, "x", p.channels, " theta ", p.theta, p.weight ? " weight" : "", p.in_place ? " in place" : "");
}

void forward(Comparison& compare, const Problem& p) {
  compare.start("rotary_forward, " + name_of(p));
  const Shape shape{p.rows, p.heads, p.channels};
  const Twin input = compare.normal(shape, 2.0), output = p.in_place ? input : compare.output(shape);
  const Twin positions = compare.integers({p.rows}, positions_of(p.rows));
  const Twin weight = p.weight ? compare.normal({p.channels}) : Twin{};
  const Twin deviation = p.weight && !p.in_place ? compare.wide_output({p.rows, p.heads}) : Twin{};
  compare.on_both([&](Backend& backend, auto pick) {
    RotaryForward arguments;
    arguments.input = pick(input);
    arguments.positions = pick(positions);
    arguments.theta = p.theta;
    arguments.weight = pick(weight);
    arguments.epsilon = 1e-3;
    arguments.output = pick(output);
    arguments.inverse_deviation = pick(deviation);
    backend.attention().rotary_forward(backend.compute_stream(), arguments);
  });
  const auto width = static_cast<double>(p.channels);
  compare.check("output", output, {.reduction = p.weight ? width : 1.0, .magnitude = 2});
  if (deviation.tested.defined()) compare.check("inverse_deviation", deviation, {.reduction = width});
}

void backward(Comparison& compare, const Problem& p, bool wants_weight, bool accumulate) {
  compare.start(text("rotary_backward, ", name_of(p), wants_weight ? "" : " without its gradient", accumulate ? " accumulate" : ""));
  const Shape shape{p.rows, p.heads, p.channels};
  const Twin d_output = compare.normal(shape), d_input = p.in_place ? d_output : compare.output(shape);
  const Twin positions = compare.integers({p.rows}, positions_of(p.rows));
  const Twin input = p.weight ? compare.normal(shape) : Twin{}, weight = p.weight ? compare.normal({p.channels}) : Twin{};
  // Any statistics will do: the backward takes them as given.
  const Twin deviation = p.weight ? compare.wide_positive({p.rows, p.heads}) : Twin{};
  const Twin d_weight = p.weight && wants_weight ? compare.wide_sum_output({p.channels}, accumulate) : Twin{};
  compare.on_both([&](Backend& backend, auto pick) {
    RotaryBackward arguments;
    arguments.forward.input = pick(input);
    arguments.forward.positions = pick(positions);
    arguments.forward.theta = p.theta;
    arguments.forward.weight = pick(weight);
    arguments.forward.inverse_deviation = pick(deviation);
    arguments.d_output = pick(d_output);
    arguments.d_input = pick(d_input);
    arguments.d_weight = pick(d_weight);
    arguments.accumulate_weight = accumulate;
    backend.attention().rotary_backward(backend.compute_stream(), arguments);
  });
  const auto width = static_cast<double>(p.channels), height = static_cast<double>(p.rows * p.heads);
  compare.check("d_input", d_input, {.reduction = p.weight ? width : 1.0, .magnitude = p.weight ? 10.0 : 2.0});
  if (d_weight.tested.defined()) compare.check("d_weight", d_weight, {.reduction = height, .magnitude = 10});
}

}  // namespace

void compare_rotary_kernels(Comparison& compare, const Precision& precision) {
  std::vector<Problem> problems = {{1, 1, 2}, {3, 2, 14}, {13, 3, 64}, {9, 2, 36}};
  if (precision.thorough())
    for (const Problem& more : {Problem{1, 14, 64}, Problem{37, 5, 128}, Problem{70, 2, 10}, Problem{5, 1, 260}, Problem{300, 3, 16}})
      problems.push_back(more);
  for (Problem problem : problems)
    for (const double theta : {10000.0, 1e6}) {
      problem.theta = theta;
      for (problem.weight = false;; problem.weight = true) {
        for (problem.in_place = false;; problem.in_place = true) {
          forward(compare, problem);
          backward(compare, problem, true, false);
          if (problem.in_place) break;
        }
        if (problem.weight) break;
      }
      problem.in_place = false;
      backward(compare, problem, true, true);
      backward(compare, problem, false, false);
    }
}

}  // namespace kernel_suite
