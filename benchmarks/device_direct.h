// The direct form of Newton-Schulz in float16 as a device would run it without this project's kernels: three full products of the
// library an iteration, one matrix after another. What the device benchmarks compare with.
#pragma once

#include "dmuon/backend/backend.h"
#include "dmuon/newton_schulz/coefficients.h"

namespace dmuon::bench {

class DeviceDirect {
 public:
  // Of matrices of this shape, which must be on a backend with DeviceUpdates.
  DeviceDirect(Backend& backend, const Shape& shape);

  // Queues the iterations; the result (float16) stays valid until the next call. `update` is float32 and only read; `square_sums`
  // (float64 [chunks]) are its sums of squares.
  const Tensor& queue(Stream& stream, const CoefficientSet& set, const Tensor& update, const Tensor& square_sums);

 private:
  Backend& backend_;
  bool tall_;
  Tensor x_[2], gram_, factor_;
};

}  // namespace dmuon::bench
