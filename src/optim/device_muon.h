// Whole Muon updates in float16 on a device that has DeviceUpdates (dmuon/backend/device_updates.h): momentum, norm, Newton-Schulz,
// guard and apply of a batch are one piece of work, recorded as a graph and replayed from the second step on. Learning rate,
// decay and momentum reach it through tensors. The host looks at the guard once per call of the rule.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "dmuon/newton_schulz/device.h"
#include "dmuon/optim/orthogonal_momentum.h"
#include "dmuon/optim/update_rule.h"

namespace dmuon {

// The last half of an item's update, but for the update itself.
using ApplyOf = std::function<MuonApply(UpdateItem& item, const Shape& matrix_shape)>;

class DeviceMuon {
 public:
  // Of MuonMomentum, with the numbers that the tensor holds.
  struct Hyper {
    Tensor tensor;
    double momentum, gradient_scale;
  };
  // For up to `items` matrices; `scratch_bytes` as in DeviceScratch.
  DeviceMuon(Backend& backend, Stream& stream, const OrthogonalMomentumOptions& options, Hyper hyper, int64_t items,
             int64_t& scratch_bytes);

  // Queues the update of items of one shape.
  void update(const Shape& shape, std::span<UpdateItem* const> items, const ApplyOf& apply_of);
  // Waits for what was queued, repeats by the direct form what failed the guard, and returns how many did. A parameter whose
  // update failed is still as it was until then; a result that is not finite in the direct form has been applied as it is.
  int64_t finish();

 private:
  struct Batch {
    Shape shape;
    std::vector<UpdateItem*> items;
    std::vector<MuonApply> applies;
    int64_t first = 0;  // in failed_
    bool gram = false;
  };
  void queue_momentum(const UpdateItem& item, const Shape& shape, const Tensor& update, const Tensor& sums) const;
  void repeat(const Batch& batch, size_t i);

  Backend& backend_;
  Stream& stream_;
  const OrthogonalMomentumOptions& options_;
  Hyper hyper_;
  DeviceScratch scratch_;
  Tensor failed_;  // int32 [items]
  int64_t items_ = 0;
  std::vector<Batch> batches_;
};

}  // namespace dmuon
