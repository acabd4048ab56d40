#include "dmuon/backend/device_updates.h"

namespace dmuon {

DeviceUpdates::~DeviceUpdates() = default;

SymmetricShape SymmetricShape::of(const BatchedProduct& p) {
  // a^T b^T of a symmetric result is b a.
  const bool swapped = p.transpose_a && p.transpose_b;
  SymmetricShape shape;
  shape.a_along_k = swapped || !p.transpose_a, shape.b_along_k = !swapped && p.transpose_b;
  shape.n = p.d[0].size(0), shape.k = (swapped ? p.b[0] : p.a[0]).size(shape.a_along_k ? 1 : 0);
  shape.count = static_cast<int64_t>(p.d.size());
  return shape;
}

DeviceUpdates* device_updates(Backend& backend) { return dynamic_cast<DeviceUpdates*>(&backend.optimizer()); }

}  // namespace dmuon
