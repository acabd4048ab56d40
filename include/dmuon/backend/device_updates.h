// What a device offers, beyond the kernels that every backend has, to orthogonalise and apply whole updates without the host in
// between. Host backends have none of it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "dmuon/backend/backend.h"

namespace dmuon {

// The engine's guard on the device. The update fails when `square_sums`, added in order, is not finite or above `limit`. Then
// failed[0] = 1 and, with `withhold`, `update` and `guarded_hyper` become zero, so that a MuonApply with them leaves its parameter
// as it is, bit for bit, until the host looks. Otherwise failed[0] = 0 and `guarded_hyper` is a copy of `hyper`.
struct GuardUpdate {
  Tensor square_sums;           // float64 [chunks]
  Tensor update;                // float16 or float32
  Tensor hyper, guarded_hyper;  // float64 [MuonApply::count]; optional together
  Tensor failed;                // int32 [1]
  double limit = 0.0;
  bool withhold = true;
};

// What forms of a symmetric product are chosen by: d[n, n] = op(a) op(b) over k of `count` matrices. An operand is along k when its
// rows are (a as it is, b transposed).
struct SymmetricShape {
  int64_t n = 0, k = 0;
  bool a_along_k = true, b_along_k = true;
  int64_t count = 1;
  static SymmetricShape of(const BatchedProduct& product);
  bool operator==(const SymmetricShape&) const = default;
};

class DeviceUpdates {
 public:
  virtual ~DeviceUpdates();

  // Of the products of Newton-Schulz: float16 with float32 sums, from matrices that normalize() has brought to norm 1.
  virtual DType product_dtype() const = 0;
  virtual void guard(Stream& stream, const GuardUpdate& arguments) = 0;

  // Queues what `queue` queues. The second call with one key and the same tensors records it as a graph, later ones replay that:
  // `queue` is not called then. So it may only call kernels on `stream`, none of which touches memory outside `tensors` (and
  // scratch of its own), and `key` has to stand for every other number that it hands them: what changes from step to step
  // belongs into tensors. A call whose tensors have moved records anew. No graphs in a shape-only pass and while profiling.
  virtual void replay(Stream& stream, uint64_t key, std::span<const Tensor> tensors, const std::function<void()>& queue) = 0;
  virtual void use_graphs(bool on) = 0;  // on, unless turned off
  // What is kept of graphs, scratch and recorded work together; those that were used longest ago go first.
  virtual void limit_graphs(int64_t bytes) = 0;
  struct GraphCounts {
    int64_t recorded = 0, replayed = 0, dropped = 0;
    int64_t kept_bytes = 0;  // an estimate of what the driver takes included
  };
  virtual GraphCounts graph_counts() const = 0;

  // The forms in which the device computes symmetric products of this shape in product_dtype(): tiles and depth of the kernel
  // ("128x64x3"), which differ in time only, never in bits; with `changing_bits` those of the library, whose sums have another order:
  // products of block rows up to the diagonal ("blocks256") and the full product ("full"), mirrored both. Empty for a shape that it
  // does not take.
  virtual std::vector<std::string> symmetric_forms(const SymmetricShape& shape, bool changing_bits = false) const = 0;
  // From now on, products of this shape take the form: of about this many matrices for one of the kernel, of any number for one of
  // the library, so that no bit depends on who shares a call. DeviceError for an unknown one.
  virtual void use_symmetric_form(const SymmetricShape& shape, const std::string& form) = 0;
};

// Null for backends that have none of it.
DeviceUpdates* device_updates(Backend& backend);

}  // namespace dmuon
