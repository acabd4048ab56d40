// Checks a plan that came from a file or another rank against the inventory it is to serve.
#pragma once

#include "dmuon/plan/plan.h"

namespace dmuon {

// ConfigError naming the tensor, unit or value: tensors missing, twice or in another unit; overlapping or unaligned
// offsets; cuts out of order or inside what may not be cut; batches that mix shapes, rules, owners or windows.
void validate_plan(const Plan& plan, const std::vector<PlanTensor>& tensors, int units);

}  // namespace dmuon
