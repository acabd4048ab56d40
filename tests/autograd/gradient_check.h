// Central finite differences in float64 on the reference backend, for one operation.
#pragma once

#include <cmath>
#include <functional>
#include <limits>

#include "dmuon/autograd/operations.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "support/catch.h"
#include "support/paths.h"

namespace dmuon::test {

inline std::unique_ptr<Backend> reference_backend(HostMode mode = HostMode::normal, uint64_t deferred_seed = 1) {
  BackendOptions options;
  options.mode = mode;
  options.deferred_seed = deferred_seed;
  return open_backend_plugin(dmuon::testing::reference_plugin(), options);
}

inline std::vector<double> random_values(int64_t count, uint64_t salt, double scale = 1.0) {
  const Random random(7, RandomStream::test, salt);
  std::vector<double> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = scale * random.normal(i);
  return values;
}

inline Tensor make_tensor(Backend& backend, const Shape& shape, const std::vector<double>& values, DType dtype = DType::float64) {
  Tensor tensor = backend.allocate(shape, dtype, MemoryCategory::data, "test");
  from_doubles(backend, values, tensor);
  return tensor;
}

inline Tensor random_tensor(Backend& backend, const Shape& shape, uint64_t salt, double scale = 1.0) {
  return make_tensor(backend, shape, random_values(shape.elements(), salt, scale));
}

inline Tensor index_tensor(Backend& backend, const Shape& shape, const std::vector<int32_t>& values) {
  return make_tensor(backend, shape, std::vector<double>(values.begin(), values.end()), DType::int32);
}

inline ExecutionContext make_context(Backend& backend, Tape* tape = nullptr, int64_t sequences = 1) {
  ExecutionContext context{backend, backend.compute_stream()};
  context.tape = tape;
  context.training = true;
  context.dropout_seed = 99;
  context.first_sequence = 5;
  context.sequences = sequences;
  return context;
}

inline double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// What fills an input's gradient memory before the backward.
enum class Before {
  nothing,   // no memory: allocated or adopted by the tape
  garbage,   // memory assigned from outside, full of NaN, nothing accumulated yet
  gradient,  // memory assigned from outside that already holds a gradient: contributions add
};

using Operation = std::function<std::vector<Variable>(ExecutionContext&, const std::vector<Variable>&)>;

// d of sum_k <cotangent_k, output_k> by every element of every input, against central differences.
inline void check_gradients(const std::vector<Shape>& shapes, const Operation& operation, int64_t sequences = 1, double scale = 1.0) {
  const auto backend = reference_backend();
  std::vector<Tensor> inputs;
  for (size_t i = 0; i < shapes.size(); ++i) inputs.push_back(random_tensor(*backend, shapes[i], 100 + i, scale));
  std::vector<std::vector<double>> cotangents;

  const auto evaluate = [&] {
    ExecutionContext context = make_context(*backend, nullptr, sequences);
    std::vector<Variable> variables;
    for (const Tensor& input : inputs) variables.emplace_back(input);
    const std::vector<Variable> outputs = operation(context, variables);
    double sum = 0;
    for (size_t k = 0; k < outputs.size(); ++k) {
      const std::vector<double> values = to_doubles(*backend, outputs[k].value());
      if (cotangents.size() == k) cotangents.push_back(random_values(static_cast<int64_t>(values.size()), 200 + k));
      sum += dot(values, cotangents[k]);
    }
    return sum;
  };
  evaluate();

  std::vector<std::vector<double>> expected;
  for (const Tensor& input : inputs) {
    std::vector<double> values = to_doubles(*backend, input);
    std::vector<double> gradient(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const double kept = values[i], step = 1e-5;
      const auto at = [&](double value) {
        values[i] = value;
        from_doubles(*backend, values, input);
        return evaluate();
      };
      gradient[i] = (at(kept + step) - at(kept - step)) / (2 * step);
      values[i] = kept;
    }
    from_doubles(*backend, values, input);
    expected.push_back(std::move(gradient));
  }

  for (const Before before : {Before::nothing, Before::garbage, Before::gradient}) {
    Tape tape;
    ExecutionContext context = make_context(*backend, &tape, sequences);
    std::vector<Variable> variables;
    std::vector<std::vector<double>> prior;
    std::vector<Tensor> assigned;
    for (size_t i = 0; i < inputs.size(); ++i) {
      auto slot = std::make_shared<GradientSlot>();
      const size_t count = static_cast<size_t>(inputs[i].elements());
      prior.emplace_back(count, before == Before::garbage ? std::numeric_limits<double>::quiet_NaN() : 0.0);
      if (before == Before::gradient) prior.back() = random_values(inputs[i].elements(), 300 + i);
      if (before != Before::nothing) slot->tensor = make_tensor(*backend, inputs[i].shape(), prior.back());
      slot->defined = before == Before::gradient;
      assigned.push_back(slot->tensor);
      variables.emplace_back(inputs[i], slot);
    }
    {
      const std::vector<Variable> outputs = operation(context, variables);
      for (size_t k = 0; k < outputs.size(); ++k) contribute(context, outputs[k], make_tensor(*backend, outputs[k].shape(), cotangents[k]));
    }
    tape.backward(context);
    CHECK(tape.empty());
    for (size_t i = 0; i < inputs.size(); ++i) {
      INFO("input " << i << ", memory before: " << static_cast<int>(before));
      REQUIRE(variables[i].gradient()->defined);
      if (assigned[i].defined()) CHECK(variables[i].gradient()->tensor.raw() == assigned[i].raw());
      const std::vector<double> found = to_doubles(*backend, variables[i].gradient()->tensor);
      for (size_t j = 0; j < found.size(); ++j) {
        const double wanted = expected[i][j] + (before == Before::gradient ? prior[i][j] : 0.0);
        INFO("element " << j);
        CHECK(found[j] == Approx(wanted).epsilon(1e-6).margin(1e-7));
      }
    }
  }
}

}  // namespace dmuon::test
