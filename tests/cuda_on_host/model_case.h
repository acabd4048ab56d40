// One case of a model kernel in a chosen dtype on the tested backend and in float64 on the reference: what the comparison of
// tests/kernel_suite/ does for float32, here with bfloat16 and with tensors that begin anywhere in memory.
#pragma once

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "support/catch.h"
#include "support/kernel_suite.h"

namespace model_case {

using namespace dmuon;

struct Pair {
  Tensor tested, reference;
};

class ModelCase {
 public:
  // `shift`: elements between the start of an allocation and the tensor.
  ModelCase(Backend& tested, Backend& reference, DType dtype, int64_t shift = 0)
      : tested_(tested), reference_(reference), dtype_(dtype), shift_(shift) {}

  DType dtype() const { return dtype_; }

  // Normals rounded to the dtype, so that both sides start from equal numbers; the n-th call of every case draws the same.
  Pair normal(const Shape& shape, double deviation = 1.0) {
    const Random random(++draws_, RandomStream::test);
    std::vector<double> values(static_cast<size_t>(shape.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = rounded(deviation * random.normal(i));
    return filled(shape, dtype_, values);
  }
  Pair values(const Shape& shape, const std::vector<double>& values) { return filled(shape, dtype_, values); }
  Pair integers(const Shape& shape, const std::vector<double>& values) {
    Pair pair{make(tested_, shape, DType::int32), make(reference_, shape, DType::int32)};
    from_doubles(tested_, values, pair.tested);
    from_doubles(reference_, values, pair.reference);
    return pair;
  }
  Pair output(const Shape& shape) { return filled(shape, dtype_, not_written(shape)); }
  Pair float_output(const Shape& shape) { return filled(shape, DType::float32, not_written(shape)); }  // parameter gradients, statistics

  template <class Run>
  void on_both(const Run& run) {
    run(tested_, [](const Pair& pair) { return pair.tested; });
    run(reference_, [](const Pair& pair) { return pair.reference; });
  }

  // The norm of the difference relative to the norm of what is expected: 1e-2 in bfloat16, 1e-5 in float32.
  void check(const std::string& name, const Pair& pair) {
    const std::vector<double> found = to_doubles(tested_, pair.tested), expected = to_doubles(reference_, pair.reference);
    double difference = 0, size = 0;
    for (size_t i = 0; i < expected.size(); ++i) difference += std::pow(found[i] - expected[i], 2), size += std::pow(expected[i], 2);
    const double relative = size > 0 ? std::sqrt(difference / size) : std::sqrt(difference);
    INFO(name << " in " << name_of(dtype_) << ", " << pair.tested.to_string() << ", shift " << shift_ << ": relative error " << relative);
    CHECK(relative <= (dtype_ == DType::bfloat16 ? 1e-2 : 1e-5));
    outputs_.push_back(found);
  }
  // Everything checked so far, for comparisons bit for bit.
  const std::vector<std::vector<double>>& outputs() const { return outputs_; }

 private:
  static Tensor make(Backend& backend, const Shape& shape, DType dtype, int64_t shift = 0) {
    const Tensor memory =
        backend.allocate(Shape{shape.elements() + shift}, dtype, MemoryCategory::workspace, "a tensor of a model kernel's case");
    return memory.flat(shift, shape.elements()).reshape(shape);
  }
  Pair filled(const Shape& shape, DType dtype, const std::vector<double>& values) {
    Pair pair{make(tested_, shape, dtype, shift_), make(reference_, shape, DType::float64)};
    from_doubles(tested_, values, pair.tested);
    from_doubles(reference_, values, pair.reference);
    return pair;
  }
  static std::vector<double> not_written(const Shape& shape) {
    return std::vector<double>(static_cast<size_t>(shape.elements()), std::numeric_limits<double>::quiet_NaN());
  }
  double rounded(double value) const {
    const auto single = static_cast<float>(value);
    return dtype_ == DType::bfloat16 ? static_cast<float>(bfloat16(single)) : single;
  }

  Backend& tested_;
  Backend& reference_;
  DType dtype_;
  int64_t shift_;
  uint64_t draws_ = 0;
  std::vector<std::vector<double>> outputs_;
};

}  // namespace model_case
