// Equal tensors on two backends, one call on both, and the comparison of what comes out.
#pragma once

#include <string>
#include <vector>

#include "support/kernel_suite.h"

namespace kernel_suite {

using namespace dmuon;

// The same tensor on both backends: in the dtype under test on the tested one, float64 on the reference.
struct Twin {
  Tensor tested, reference;
};

struct Tolerance {
  double reduction = 1;      // terms that an element sums
  double magnitude = 0;      // size of intermediate terms that cancel, added to the size of the output
  double epsilon = 0x1p-23;  // of the arithmetic
};

class Comparison {
 public:
  Comparison(Backend& tested, Backend& reference, Precision precision = {})
      : tested_(tested), reference_(reference), precision_(precision) {}

  // Starts a case; `name` begins with the kernel's name, states the sizes and is unique.
  void start(const std::string& name);

  Twin normal(const Shape& shape, double deviation = 1.0, double mean = 0.0);
  Twin positive(const Shape& shape);  // squares of normals
  Twin values(const Shape& shape, const std::vector<double>& values);
  Twin integers(const Shape& shape, const std::vector<double>& values);  // int32
  Twin doubles(const std::vector<double>& values);                       // float64 on both sides
  Twin output(const Shape& shape);                                       // holds NaN
  // Statistics, losses and gradients of parameters: float32 whatever the dtype under test.
  Twin wide_normal(const Shape& shape, double deviation = 1.0, double mean = 0.0);
  Twin wide_positive(const Shape& shape);
  Twin wide_output(const Shape& shape);
  Twin wide_sum_output(const Shape& shape, bool accumulate) { return accumulate ? wide_normal(shape) : wide_output(shape); }
  Twin typed_output(const Shape& shape, DType dtype);                       // one dtype on both sides
  Twin below(int64_t bound, const Shape& shape, int64_t masked_every = 0);  // int32 in [0, bound); some -1
  // For accumulation: a random start when `accumulate`, else NaN.
  Twin sum_output(const Shape& shape, bool accumulate) { return accumulate ? normal(shape) : output(shape); }

  // Calls run(backend, pick) once for each side; pick(twin) is that side's tensor, undefined for a default Twin.
  template <class Run>
  void on_both(const Run& run) {
    run(tested_, [](const Twin& twin) { return twin.tested; });
    run(reference_, [](const Twin& twin) { return twin.reference; });
  }

  void check(const char* output, const Twin& twin, const Tolerance& tolerance = {});
  // Both tensors are on the tested side and must agree in every bit.
  void check_same_bits(const char* output, const Tensor& a, const Tensor& b);
  void check_unchanged(const char* input, uint64_t bits_before, const Tensor& tensor);
  uint64_t bits_of(const Tensor& tensor);  // of a tensor on the tested side

  Backend& tested() { return tested_; }
  OutputBits bits() && { return std::move(bits_); }

 private:
  bool narrow() const { return precision_.compute != DType::float32; }
  std::vector<double> normals(const Shape& shape, double deviation, double mean);
  std::vector<double> squares(const Shape& shape);
  // Values are rounded to the tested dtype where that is a 16-bit one.
  Twin make(const Shape& shape, DType tested, DType reference, const std::vector<double>& values);
  Tensor allocate(Backend& backend, const Shape& shape, DType dtype);
  // True when the norm of the difference is too large for the dtype; `message` says how large.
  bool too_far(const std::vector<double>& found, const std::vector<double>& expected, const Tolerance& tolerance,
               std::string& message) const;

  Backend& tested_;
  Backend& reference_;
  Precision precision_;
  std::string case_;
  OutputBits bits_;
  uint64_t draws_ = 0;  // tensors drawn so far: the coordinate of their random numbers
};

// Parts of compare_attention_kernels and compare_activation_kernels in files of their own.
void compare_rotary_kernels(Comparison& compare, const Precision& precision);
void compare_swiglu_kernels(Comparison& compare, const Precision& precision);

}  // namespace kernel_suite
