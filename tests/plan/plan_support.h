// What the planner's tests share.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "dmuon/plan/cost_model.h"
#include "dmuon/plan/milp_solver.h"
#include "dmuon/plan/plan.h"
#include "support/catch.h"

namespace dmuon {

// Matrices of one shape: how many in each unit, and what a batch of b costs: once + b * each.
struct TestShape {
  std::vector<int> in_unit;
  double once = 0.0, each = 1.0;
  Shape shape = {};  // default: a shape of its own
};

struct TestInventory {
  std::vector<PlanTensor> tensors;
  CostModel costs;
  int units = 0;
};

inline TestInventory inventory_of(const std::vector<TestShape>& shapes, int largest_batch = 4) {
  TestInventory inventory;
  for (size_t k = 0; k < shapes.size(); ++k) {
    const TestShape& row = shapes[k];
    const Shape shape = row.shape.rank() > 0 ? row.shape : Shape{static_cast<int64_t>(k) + 1, 64};
    for (size_t unit = 0; unit < row.in_unit.size(); ++unit)
      for (int i = 0; i < row.in_unit[unit]; ++i)
        inventory.tensors.push_back({"shape" + std::to_string(k) + ".unit" + std::to_string(unit) + "." + std::to_string(i), shape,
                                     static_cast<int>(unit), true, row.once + row.each});
    ShapeCost cost{0, shape, {}};
    for (int b = 1; b <= largest_batch; b *= 2) cost.batches.push_back({b, row.once + b * row.each});
    inventory.costs.add(std::move(cost));
    inventory.units = std::max(inventory.units, static_cast<int>(row.in_unit.size()));
  }
  return inventory;
}

// Every element of every tensor lies in exactly one slot, whole tensors in their owner's, cuts only where allowed; every
// whole tensor is in one batch of equal shapes inside one window; loads are the sums of the batches.
void check_plan(const Plan& plan, const std::vector<PlanTensor>& tensors);

}  // namespace dmuon
