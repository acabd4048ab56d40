#include "plan/validate.h"

#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

void validate_unit(const Plan& plan, const std::vector<PlanTensor>& tensors, size_t index, std::vector<int>& seen) {
  const UnitLayout& layout = plan.units[index];
  if (layout.cuts.size() != static_cast<size_t>(plan.slots) + 1 || layout.cuts.front() != 0 || layout.cuts.back() != layout.elements)
    throw ConfigError(text("unit ", index, " has ", layout.cuts.size(), " cuts that do not span its ", layout.elements, " elements in ",
                           plan.slots, " slots"));
  for (size_t s = 1; s < layout.cuts.size(); ++s)
    if (layout.cuts[s] < layout.cuts[s - 1]) throw ConfigError(text("unit ", index, ": cut ", s, " lies before the one before it"));
  int64_t end = 0, most = 0;  // a buffer is as large as its tensors: nobody allocates what a file claims
  for (const UnitLayout::Entry& entry : layout.entries) {
    const PlanTensor& tensor = tensors[static_cast<size_t>(entry.tensor)];
    if (tensor.unit != static_cast<int>(index))
      throw ConfigError(text("tensor ", tensor.name, " lies in unit ", index, ", not in its own, ", tensor.unit));
    if (++seen[static_cast<size_t>(entry.tensor)] > 1) throw ConfigError(text("tensor ", tensor.name, " is listed twice"));
    if (entry.offset < end || entry.offset % tensor_alignment != 0 || entry.offset > layout.elements - entry.elements)
      throw ConfigError(text("tensor ", tensor.name, " at offset ", entry.offset, " with ", entry.elements,
                             " elements overlaps, is not aligned to ", tensor_alignment, " or leaves its unit of ", layout.elements));
    end = entry.offset + entry.elements;
    most += round_up(entry.elements, tensor_alignment);
    for (int slot = 0; slot < plan.slots; ++slot) {
      const int64_t cut = layout.cuts[static_cast<size_t>(slot) + 1];
      const int64_t inside = cut - entry.offset;
      if (inside > 0 && inside < entry.elements && (tensor.whole || inside % plan.cut_elements != 0))
        throw ConfigError(text("tensor ", tensor.name, " is cut after ", inside, " of its ", entry.elements, " elements",
                               tensor.whole ? "; its rule needs it whole" : text("; cuts fall on multiples of ", plan.cut_elements)));
    }
    // The owner is the slot of the first element; an empty tensor has none.
    const auto owner = static_cast<size_t>(plan.owners[static_cast<size_t>(entry.tensor)]);
    if (entry.elements > 0 && (entry.offset < layout.cuts[owner] || entry.offset >= layout.cuts[owner + 1]))
      throw ConfigError(text("tensor ", tensor.name, " does not start in the slot of its owner, ", owner));
  }
  if (layout.elements > most)
    throw ConfigError(text("unit ", index, " has ", layout.elements, " elements, but its tensors take ", most, " with their padding"));
}

void validate_batches(const Plan& plan, const std::vector<PlanTensor>& tensors) {
  std::vector<int> batched(tensors.size(), 0);
  for (const PlanBatch& batch : plan.batches) {
    if (batch.tensors.empty()) throw ConfigError("a batch has no tensors");
    const PlanTensor& first = tensors[static_cast<size_t>(batch.tensors[0])];
    for (int index : batch.tensors) {
      const PlanTensor& tensor = tensors[static_cast<size_t>(index)];
      if (!tensor.whole) throw ConfigError(text("tensor ", tensor.name, " is in a batch but is updated element by element"));
      if (++batched[static_cast<size_t>(index)] > 1) throw ConfigError(text("tensor ", tensor.name, " is in two batches"));
      if (!(tensor.shape == first.shape) || tensor.rule != first.rule)
        throw ConfigError(text("tensor ", tensor.name, " ", tensor.shape.to_string(), " shares a batch with ", first.name, " ",
                               first.shape.to_string(), ": shapes or rules differ"));
      if (plan.owners[static_cast<size_t>(index)] != batch.slot)
        throw ConfigError(text("tensor ", tensor.name, " is in a batch of slot ", batch.slot, " but its owner is ",
                               plan.owners[static_cast<size_t>(index)]));
      if (plan.window_of_unit[static_cast<size_t>(tensor.unit)] != batch.window)
        throw ConfigError(text("tensor ", tensor.name, " is in a batch of window ", batch.window, " but its unit is in window ",
                               plan.window_of_unit[static_cast<size_t>(tensor.unit)]));
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i)
    if (tensors[i].whole && in_plan(tensors[i]) && batched[i] == 0) throw ConfigError(text("tensor ", tensors[i].name, " is in no batch"));
}

}  // namespace

void validate_plan(const Plan& plan, const std::vector<PlanTensor>& tensors, int units) {
  if (plan.replicas < 1 || plan.shards < 1 || int64_t{plan.replicas} * plan.shards != plan.slots)
    throw ConfigError(text(plan.replicas, " replicas and ", plan.shards, " shards do not make ", plan.slots, " slots"));
  if (plan.cut_elements < tensor_alignment || plan.cut_elements % tensor_alignment != 0)
    throw ConfigError(text("cut_elements is ", plan.cut_elements, ", expected a positive multiple of ", tensor_alignment));
  if (plan.units.size() != static_cast<size_t>(units)) throw ConfigError(text("it has ", plan.units.size(), " units, the model ", units));
  if (plan.loads.size() != static_cast<size_t>(plan.slots))
    throw ConfigError(text("it has ", plan.loads.size(), " loads for ", plan.slots, " slots"));
  for (size_t unit = 0; unit < plan.window_of_unit.size(); ++unit) {
    const int before = unit == 0 ? -1 : plan.window_of_unit[unit - 1], window = plan.window_of_unit[unit];
    if (window != before + 1 && (unit == 0 || window != before))
      throw ConfigError(text("unit ", unit, " is in window ", window, " after window ", before));
  }
  std::vector<int> seen(tensors.size(), 0);
  for (size_t unit = 0; unit < plan.units.size(); ++unit) validate_unit(plan, tensors, unit, seen);
  for (size_t i = 0; i < tensors.size(); ++i)
    if (seen[i] == 0 && in_plan(tensors[i])) throw ConfigError(text("tensor ", tensors[i].name, " is missing"));
  validate_batches(plan, tensors);
}

}  // namespace dmuon
