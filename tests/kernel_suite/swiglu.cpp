#include "dmuon/core/text.h"
#include "kernel_suite/comparison.h"

namespace kernel_suite {
namespace {

enum class Place { apart, first, second };  // which input the output takes over, if any
constexpr const char* places[] = {"", " over the first", " over the second"};

void forward(Comparison& compare, int64_t rows, int64_t columns, Place place) {
  compare.start(text("swiglu_forward, ", rows, "x", columns, places[static_cast<int>(place)]));
  const Shape shape{rows, columns};
  const Twin gate = compare.normal(shape, 3.0), up = compare.normal(shape);
  const Twin output = place == Place::first ? gate : place == Place::second ? up : compare.output(shape);
  compare.on_both([&](Backend& backend, auto pick) {
    SwiGluForward arguments;
    arguments.gate = pick(gate);
    arguments.up = pick(up);
    arguments.output = pick(output);
    backend.activation().swiglu_forward(backend.compute_stream(), arguments);
  });
  compare.check("output", output, {.magnitude = 1});
}

// The operation lets d_gate take over d_output (or gate) and d_up the memory of up.
void backward(Comparison& compare, int64_t rows, int64_t columns, Place place) {
  compare.start(text("swiglu_backward, ", rows, "x", columns, places[static_cast<int>(place)]));
  const Shape shape{rows, columns};
  const Twin gate = compare.normal(shape, 3.0), up = compare.normal(shape), d_output = compare.normal(shape);
  const Twin d_gate = place == Place::first ? d_output : place == Place::second ? gate : compare.output(shape);
  const Twin d_up = place == Place::apart ? compare.output(shape) : place == Place::first ? up : d_output;
  compare.on_both([&](Backend& backend, auto pick) {
    SwiGluBackward arguments;
    arguments.gate = pick(gate);
    arguments.up = pick(up);
    arguments.d_output = pick(d_output);
    arguments.d_gate = pick(d_gate);
    arguments.d_up = pick(d_up);
    backend.activation().swiglu_backward(backend.compute_stream(), arguments);
  });
  compare.check("d_gate", d_gate, {.magnitude = 2});
  compare.check("d_up", d_up, {.magnitude = 1});
}

// Gates at which the exponential under- or overflows, and zeros.
void extremes(Comparison& compare) {
  const std::vector<double> points = {0.0, -0.0, 0x1p-100, -0x1p-100, 5, -5, 20, -20, 88, -88, 100, -100, 1024, -1024, 0x1p33, -0x1p33};
  for (size_t i = 0; i < points.size(); ++i) {
    compare.start(text("swiglu extremes, gate ", points[i], " (", i, ")"));
    const Twin gate = compare.values({1}, {points[i]}), one = compare.values({1}, {1.0});
    const Twin output = compare.output({1}), d_gate = compare.output({1}), d_up = compare.output({1});
    compare.on_both([&](Backend& backend, auto pick) {
      SwiGluForward arguments;
      arguments.gate = pick(gate);
      arguments.up = pick(one);
      arguments.output = pick(output);
      backend.activation().swiglu_forward(backend.compute_stream(), arguments);
      SwiGluBackward gradient;
      gradient.gate = pick(gate);
      gradient.up = gradient.d_output = pick(one);
      gradient.d_gate = pick(d_gate);
      gradient.d_up = pick(d_up);
      backend.activation().swiglu_backward(backend.compute_stream(), gradient);
    });
    compare.check("output", output, {.magnitude = 1});
    compare.check("d_gate", d_gate, {.magnitude = 1});
    compare.check("d_up", d_up, {.magnitude = 1});
  }
}

}  // namespace

void compare_swiglu_kernels(Comparison& compare, const Precision& precision) {
  using Sizes = std::vector<int64_t>;
  extremes(compare);
  for (int64_t rows : precision.thorough() ? Sizes{1, 3, 17} : Sizes{1, 19})
    for (int64_t columns : precision.thorough() ? Sizes{1, 7, 36, 65, 1600} : Sizes{7, 64})
      for (Place place : {Place::apart, Place::first, Place::second}) {
        forward(compare, rows, columns, place);
        backward(compare, rows, columns, place);
      }
}

}  // namespace kernel_suite
