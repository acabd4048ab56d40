// Places the tensors of every unit in its buffer and cuts the buffers into slots.
#pragma once

#include "dmuon/plan/plan.h"

namespace dmuon {

// Whole tensors lie inside their owner's slot. Element-wise tensors level the bytes (master, gradient, state) that the
// slots hold in all units together: those of at most `cut_elements` go whole to the slot with the fewest bytes; larger
// ones are cut at multiples of cut_elements from their start. `owners` is read for whole tensors only.
std::vector<UnitLayout> make_layouts(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options,
                                     const std::vector<int>& owners);

}  // namespace dmuon
