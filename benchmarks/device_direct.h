// The direct form of Newton-Schulz in float16 as a device would run it without this project's kernels: three full products of the
// library an iteration, A = X X^T, B = c A A + b A and X = B X + a X. What the device benchmarks compare with.
#pragma once

#include <span>
#include <vector>

#include "dmuon/backend/backend.h"
#include "dmuon/newton_schulz/coefficients.h"

namespace dmuon::bench {

// How the library is called. `single`: its kernels for one product, matrix after matrix; these add to what is in the result, so A and X
// are copied there first. Otherwise up to `batch` matrices of one shape in a call, whose addresses are written before each.
struct DirectForm {
  int64_t batch = 1;
  bool single = true;
  std::string name() const;
};
// All that are worth a try for `count` matrices of one shape.
std::vector<DirectForm> direct_forms(int64_t count);

class DeviceDirect {
 public:
  // For matrices of this shape on a backend with DeviceUpdates. Allocates everything that queue() needs.
  DeviceDirect(Backend& backend, const Shape& shape, const DirectForm& form);

  // Queues the iterations of up to `batch` matrices; the results (float16) stay valid until the next call. `updates` are float32 and
  // only read; `square_sums` (float64 [chunks] each) are their sums of squares.
  std::span<const Tensor> queue(Stream& stream, const CoefficientSet& set, std::span<const Tensor> updates,
                                std::span<const Tensor> square_sums);
  // What a recording has to name.
  std::vector<Tensor> tensors() const;

 private:
  void square(Stream& stream, std::span<const Tensor> x);
  void polynomial(Stream& stream, double b, double c, size_t count);
  void apply(Stream& stream, double a, std::span<const Tensor> from, std::span<const Tensor> to);

  Backend& backend_;
  DirectForm form_;
  bool tall_;
  std::vector<Tensor> x_[2], gram_, factor_;
};

}  // namespace dmuon::bench
