// Newton-Schulz in float16 on a device that has DeviceUpdates (dmuon/backend/device_updates.h): norms, products and the guard's sums
// without the host in between. The mathematics, the schedules and the guard are those of newton_schulz.h; restarts come from the
// float16 column of the coefficient sets (docs/newton_schulz.md).
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "dmuon/backend/device_updates.h"
#include "dmuon/newton_schulz/newton_schulz.h"

namespace dmuon {

// How many of `count` matrices of a shape share a call: those that fit the workspace, since a device wants many at once.
int64_t newton_schulz_device_batch(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, int64_t count,
                                   int64_t workspace_bytes);

// Scratch of batches that follow one another on a stream, at the same addresses step after step, so that what was recorded for a
// batch can be replayed: one block, handed out from its start. What does not fit yet is allocated by itself, and the next block
// is as large as all of it.
class DeviceScratch {
 public:
  // `bytes`: of the block; raised to what was needed when the scratch ends.
  DeviceScratch(Backend& backend, int64_t& bytes);
  ~DeviceScratch() { bytes_ = largest_ > bytes_ ? largest_ : bytes_; }
  DeviceScratch(const DeviceScratch&) = delete;
  DeviceScratch& operator=(const DeviceScratch&) = delete;

  Tensor take(const Shape& shape, DType dtype, std::string_view label);
  // Gives back all that was taken since position() was `position`.
  int64_t position() const { return position_; }
  void give_back(int64_t position) { position_ = position; }

 private:
  Backend& backend_;
  int64_t& bytes_;
  Tensor block_;
  int64_t position_ = 0, largest_ = 0;
};

// A batch of `count` matrices of one shape and everything that it needs, allocated at once, so that queue() may be recorded and
// replayed. DeviceError for a backend without DeviceUpdates, ConfigError for a specification in another dtype than float16.
class DeviceNewtonSchulz {
 public:
  // Takes its memory from `scratch`, if given, which must not get it back before the object has gone.
  DeviceNewtonSchulz(Backend& backend, const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, int64_t count,
                     DeviceScratch* scratch = nullptr);
  ~DeviceNewtonSchulz();
  DeviceNewtonSchulz(DeviceNewtonSchulz&&) noexcept;

  // Normalises `matrices` (float32, only read) by their `square_sums` (float64 [count, chunks]), orthogonalises them and takes the
  // sums of squares of the results. Queues kernels only.
  void queue(Stream& stream, std::span<const Tensor> matrices, const Tensor& square_sums);

  const std::vector<Tensor>& results() const;  // float16
  // Of result i, for the guard.
  Tensor result_square_sums(int64_t i) const;
  // Above it the guard calls a result failed; infinite for the direct form.
  double guard_limit() const;
  bool gram() const;
  // Everything that queue() touches besides its arguments.
  std::vector<Tensor> tensors() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace dmuon
