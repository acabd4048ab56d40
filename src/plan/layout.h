// Places the tensors of one unit in its buffer and cuts the buffer into slots.
#pragma once

#include "dmuon/plan/plan.h"

namespace dmuon {

// Whole tensors lie inside their owner's slot. Element-wise tensors of at most `cut_elements` stay whole and level the
// bytes of the slots; larger ones are cut at multiples of cut_elements from their start. `owners` is read for whole
// tensors only.
UnitLayout make_unit_layout(const std::vector<PlanTensor>& tensors, int unit, const PlanOptions& options, const std::vector<int>& owners);

}  // namespace dmuon
