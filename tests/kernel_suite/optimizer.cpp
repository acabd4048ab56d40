#include <cmath>
#include <iterator>
#include <limits>

#include "dmuon/core/checked.h"
#include "dmuon/core/text.h"
#include "kernel_suite/comparison.h"

namespace kernel_suite {
namespace {

// A second copy of the parameter in `published`, none, float32 or bfloat16.
enum class Copy : uint8_t { none, float32, bfloat16 };
const char* name_of_copy(Copy copy) { return copy == Copy::none ? "" : copy == Copy::float32 ? " float32 copy" : " bfloat16 copy"; }

Twin published_output(Comparison& compare, const Shape& shape, Copy copy) {
  if (copy == Copy::none) return {};
  return compare.typed_output(shape, copy == Copy::float32 ? DType::float32 : DType::bfloat16);
}

// The copy is the parameter, rounded; bits must be those of the separate kernel.
void check_published(Comparison& compare, const Twin& parameter, const Twin& published) {
  if (!published.tested.defined()) return;
  const bool narrow = published.tested.dtype() == DType::bfloat16;
  compare.check("published", published, {.epsilon = narrow ? 0x1p-10 : 0x1p-23});
  const Twin converted = compare.typed_output(published.tested.shape(), published.tested.dtype());
  compare.tested().optimizer().convert(compare.tested().compute_stream(), {parameter.tested, converted.tested});
  compare.check_same_bits("published and converted", published.tested, converted.tested);
}

void adamw(Comparison& compare, int64_t n, double weight_decay, Copy copy) {
  compare.start(text("adamw, ", n, " decay ", weight_decay, name_of_copy(copy)));
  const Twin published = published_output(compare, {n}, copy);
  const Twin parameter = compare.normal({n}), gradient = compare.normal({n}), first = compare.normal({n}), second = compare.positive({n});
  std::vector<double> values(AdamWPass::count);
  values[AdamWPass::learning_rate] = 0.05;
  values[AdamWPass::beta1] = 0.9;
  values[AdamWPass::beta2] = 0.95;
  values[AdamWPass::epsilon] = 1e-8;
  values[AdamWPass::weight_decay] = weight_decay;
  values[AdamWPass::correction1] = 1 - std::pow(0.9, 3);
  values[AdamWPass::correction2] = 1 - std::pow(0.95, 3);
  values[AdamWPass::gradient_scale] = 0.5;
  const Twin hyper = compare.doubles(values);
  compare.on_both([&](Backend& backend, auto pick) {
    AdamWPass arguments;
    arguments.parameter = pick(parameter);
    arguments.gradient = pick(gradient);
    arguments.first_moment = pick(first);
    arguments.second_moment = pick(second);
    arguments.hyper = pick(hyper);
    arguments.published = pick(published);
    backend.optimizer().adamw(backend.compute_stream(), arguments);
  });
  compare.check("parameter", parameter);
  compare.check("first_moment", first);
  compare.check("second_moment", second);
  check_published(compare, parameter, published);
}

void sgd(Comparison& compare, int64_t n, bool first_step, bool nesterov, Copy copy) {
  compare.start(text("sgd, ", n, first_step ? " first step" : "", nesterov ? " nesterov" : "", name_of_copy(copy)));
  const Twin published = published_output(compare, {n}, copy);
  const Twin parameter = compare.normal({n}), gradient = compare.normal({n});
  const Twin buffer = compare.sum_output({n}, !first_step);  // NaN before the first step: it must not be read
  std::vector<double> values(SgdPass::count);
  values[SgdPass::learning_rate] = 0.05;
  values[SgdPass::momentum] = 0.9;
  values[SgdPass::dampening] = nesterov ? 0.0 : 0.1;
  values[SgdPass::weight_decay] = 0.2;
  values[SgdPass::gradient_scale] = 0.5;
  values[SgdPass::first_step] = first_step;
  values[SgdPass::nesterov] = nesterov;
  const Twin hyper = compare.doubles(values);
  compare.on_both([&](Backend& backend, auto pick) {
    SgdPass arguments;
    arguments.parameter = pick(parameter);
    arguments.gradient = pick(gradient);
    arguments.momentum_buffer = pick(buffer);
    arguments.hyper = pick(hyper);
    arguments.published = pick(published);
    backend.optimizer().sgd(backend.compute_stream(), arguments);
  });
  compare.check("parameter", parameter);
  compare.check("momentum_buffer", buffer);
  check_published(compare, parameter, published);
}

void muon_momentum(Comparison& compare, const Shape& shape, bool sum_form, bool nesterov, int64_t chunk) {
  compare.start(text("muon_momentum, ", shape.to_string(), sum_form ? " sum" : " lerp", nesterov ? " nesterov" : "", " chunk ", chunk));
  const Twin gradient = compare.normal(shape), buffer = compare.normal(shape), update = compare.output(shape);
  const Twin sums = chunk > 0 ? compare.typed_output({divide_up(shape.elements(), chunk)}, DType::float64) : Twin{};
  std::vector<double> values(MuonMomentum::count);
  values[MuonMomentum::momentum] = 0.95;
  values[MuonMomentum::gradient_scale] = 0.5;
  const Twin hyper = compare.doubles(values);
  compare.on_both([&](Backend& backend, auto pick) {
    MuonMomentum arguments;
    arguments.sum_form = sum_form;
    arguments.nesterov = nesterov;
    arguments.gradient = pick(gradient);
    arguments.momentum_buffer = pick(buffer);
    arguments.update = pick(update);
    arguments.square_sums = pick(sums);
    if (chunk > 0) arguments.chunk = chunk;
    arguments.hyper = pick(hyper);
    backend.optimizer().muon_momentum(backend.compute_stream(), arguments);
  });
  compare.check("momentum_buffer", buffer);
  compare.check("update", update);
  if (chunk > 0) compare.check("square_sums", sums);
}

void muon_apply(Comparison& compare, int64_t n, Copy copy) {
  compare.start(text("muon_apply, ", n, name_of_copy(copy)));
  const Twin published = published_output(compare, {n}, copy);
  const Twin parameter = compare.normal({n}), update = compare.normal({n});
  std::vector<double> values(MuonApply::count);
  values[MuonApply::learning_rate] = 0.02;
  values[MuonApply::weight_decay] = 0.1;
  values[MuonApply::scale] = 1.7;
  const Twin hyper = compare.doubles(values);
  compare.on_both([&](Backend& backend, auto pick) {
    MuonApply arguments;
    arguments.parameter = pick(parameter);
    arguments.update = pick(update);
    arguments.hyper = pick(hyper);
    arguments.published = pick(published);
    backend.optimizer().muon_apply(backend.compute_stream(), arguments);
  });
  compare.check("parameter", parameter);
  check_published(compare, parameter, published);
}

// The same values in a floating type that both sides store exactly.
Twin stored_as(Comparison& compare, const Twin& twin, DType dtype) {
  if (dtype == DType::float32) return twin;
  const Twin stored = compare.typed_output(twin.tested.shape(), dtype);
  const std::vector<double> values = to_doubles(compare.tested(), twin.tested);
  compare.on_both([&](Backend& backend, auto pick) { from_doubles(backend, values, pick(stored)); });
  return stored;
}

void reductions(Comparison& compare, int64_t n, DType dtype, int64_t chunk) {
  const Tolerance exact{.reduction = static_cast<double>(n), .magnitude = 1, .epsilon = 0x1p-52};
  compare.start(text("square_sums, ", n, " ", name_of(dtype), " chunk ", chunk));
  const Twin in = stored_as(compare, compare.normal({n}), dtype);
  const Twin squares = compare.typed_output({divide_up(n, chunk)}, DType::float64), total = compare.typed_output({1}, DType::float64);
  compare.on_both([&](Backend& backend, auto pick) {
    SquareSums arguments;
    arguments.in = pick(in);
    arguments.out = pick(squares);
    arguments.chunk = chunk;
    backend.optimizer().square_sums(backend.compute_stream(), arguments);
  });
  compare.check("out", squares, exact);
  if (dtype != DType::float32) return;

  compare.start(text("sum, ", n, " beside chunk ", chunk));
  compare.on_both([&](Backend& backend, auto pick) {
    Sum arguments;
    arguments.in = pick(in);
    arguments.out = pick(total);
    backend.optimizer().sum(backend.compute_stream(), arguments);
  });
  compare.check("out", total, {.reduction = static_cast<double>(n), .magnitude = static_cast<double>(n), .epsilon = 0x1p-52});
}

void convert(Comparison& compare, int64_t n, DType from, DType to) {
  compare.start(text("convert, ", n, " ", name_of(from), " to ", name_of(to)));
  std::vector<double> values = to_doubles(compare.tested(), compare.normal({n}).tested);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double special[] = {infinity, -infinity, std::numeric_limits<double>::quiet_NaN(), 3.4e38, -3.4e38, 1e-40, -0.0, 1.00390625};
  for (size_t i = 0; i < std::size(special) && i < values.size(); ++i) values[values.size() - 1 - i] = special[i];
  const Twin in = compare.typed_output({n}, from), out = compare.typed_output({n}, to);
  compare.on_both([&](Backend& backend, auto pick) {
    from_doubles(backend, values, pick(in));
    backend.optimizer().convert(backend.compute_stream(), {pick(in), pick(out)});
  });
  compare.check("out", out, {.epsilon = 0});
}

void count_non_finite(Comparison& compare, int64_t n, int64_t bad_every) {
  compare.start(text("count_non_finite, ", n, " bad every ", bad_every));
  std::vector<double> values = to_doubles(compare.tested(), compare.normal({n}).tested);
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const double bad[] = {infinity, -infinity, std::numeric_limits<double>::quiet_NaN()};
  for (int64_t i = n - 1; bad_every > 0 && i >= 0; i -= bad_every) values[static_cast<size_t>(i)] = bad[i % 3];
  const Twin in = compare.values({n}, values), out = compare.typed_output({1}, DType::int64);
  compare.on_both([&](Backend& backend, auto pick) {
    CountNonFinite arguments;
    arguments.in = pick(in);
    arguments.out = pick(out);
    backend.optimizer().count_non_finite(backend.compute_stream(), arguments);
  });
  compare.check("out", out, {.epsilon = 0});
}

}  // namespace

OutputBits compare_optimizer_kernels(Backend& tested, Backend& reference) {
  Comparison compare(tested, reference);
  for (int64_t n : {1, 7, 36, 1600, 16385, 70001}) {
    for (Copy copy : {Copy::none, Copy::float32, Copy::bfloat16}) {
      for (double weight_decay : {0.0, 0.1}) adamw(compare, n, weight_decay, copy);
      for (bool first_step : {false, true})
        for (bool nesterov : {false, true}) sgd(compare, n, first_step, nesterov, copy);
      muon_apply(compare, n, copy);
    }
    for (DType from : {DType::float32, DType::bfloat16, DType::float16})
      for (DType to : {DType::float32, DType::bfloat16, DType::float16}) convert(compare, n, from, to);
    for (int64_t chunk : {64, 16384}) {
      reductions(compare, n, DType::float32, chunk);
      reductions(compare, n, DType::bfloat16, chunk);
      reductions(compare, n, DType::float16, chunk);
    }
    for (int64_t bad_every : {0, 1, 5}) count_non_finite(compare, n, bad_every);
  }
  for (const Shape& shape : {Shape{1, 1}, Shape{7, 36}, Shape{52, 65}, Shape{17, 1600}})
    for (bool sum_form : {false, true})
      for (bool nesterov : {false, true})
        for (int64_t chunk : {0, 64, 16384}) muon_momentum(compare, shape, sum_form, nesterov, chunk);
  return std::move(compare).bits();
}

}  // namespace kernel_suite
