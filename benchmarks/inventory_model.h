// A model that is only its parameters, from an inventory file: for measuring optimizers without a forward pass.
#pragma once

#include "dmuon/nn/model.h"
#include "dmuon/plan/model_inventory.h"

namespace dmuon::bench {

class InventoryModel final : public Model {
 public:
  // Every dimension is divided by `divide` and rounded to the nearest, at least 1.
  InventoryModel(const ModelInventory& inventory, int64_t divide);
  const Inventory& inventory() const override { return inventory_; }
  ModelFacts facts() const override { return {.parameters = inventory_.elements()}; }
  Variable forward(ExecutionContext& context, const Tensor& tokens, const Tensor& positions, ModelCache* cache, bool last_only) override;
  ModelCache make_cache(Backend&, int64_t, int64_t) const override { return {}; }

 private:
  Inventory inventory_;
};

}  // namespace dmuon::bench
