#include "plan/layout.h"

#include <algorithm>
#include <limits>

#include "dmuon/core/checked.h"

namespace dmuon {
namespace {

int64_t padded(const PlanTensor& tensor) { return round_up(tensor.shape.elements(), tensor_alignment); }

// The level to which slots fill up when `amount` is poured on top of `loads`.
int64_t water_level(std::vector<int64_t> loads, int64_t amount) {
  std::sort(loads.begin(), loads.end());
  for (size_t k = 1; k <= loads.size(); ++k) {
    int64_t below = 0;
    for (size_t i = 0; i < k; ++i) below += loads[i];
    const int64_t level = divide_up(below + amount, static_cast<int64_t>(k));
    if (k == loads.size() || level <= loads[k]) return level;
  }
  return 0;
}

}  // namespace

UnitLayout make_unit_layout(const std::vector<PlanTensor>& tensors, int unit, const PlanOptions& options, const std::vector<int>& owners) {
  const auto slots = static_cast<size_t>(options.slots);
  std::vector<std::vector<int>> whole(slots);  // tensors that stay in one piece, by slot
  std::vector<int64_t> loads(slots, 0);
  std::vector<int> small, large;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].unit != unit) continue;
    if (tensors[i].whole) {
      whole[static_cast<size_t>(owners[i])].push_back(static_cast<int>(i));
      loads[static_cast<size_t>(owners[i])] += padded(tensors[i]);
    } else if (tensors[i].shape.elements() > options.cut_elements && options.strategy != PlanStrategy::rank0) {
      large.push_back(static_cast<int>(i));
    } else {
      small.push_back(static_cast<int>(i));
    }
  }
  int64_t large_elements = 0;
  for (int i : large) large_elements += padded(tensors[static_cast<size_t>(i)]);
  for (int i : small) {
    const size_t slot =
        options.strategy == PlanStrategy::rank0 ? 0 : static_cast<size_t>(std::min_element(loads.begin(), loads.end()) - loads.begin());
    whole[slot].push_back(i);
    loads[slot] += padded(tensors[static_cast<size_t>(i)]);
  }

  // The large ones flow through the slots in order. A tensor that continues from the slot before comes first, then the
  // slot's whole tensors, then new large tensors up to the level; so every tensor stays contiguous. Where whole tensors
  // stand in the way of a tensor that would have to pass through, the tensor ends here.
  const int64_t level = water_level(loads, large_elements);
  UnitLayout layout;
  layout.cuts.push_back(0);
  size_t next = 0;
  int64_t taken = 0;  // elements of large[next] already placed
  int64_t position = 0;
  const auto place_large = [&](int64_t capacity, bool must_end) {
    const PlanTensor& tensor = tensors[static_cast<size_t>(large[next])];
    const int64_t elements = tensor.shape.elements();
    const int64_t left = elements - taken;
    int64_t count = std::min(left, round_up(std::max<int64_t>(capacity, 0), options.cut_elements));
    if (must_end || left - count < 1) count = left;
    if (count == 0) return false;
    if (taken == 0) layout.entries.push_back({large[next], position, elements});
    taken += count;
    if (taken < elements) {
      position += count;
      return false;
    }
    position += round_up(count, tensor_alignment);
    taken = 0;
    ++next;
    return true;
  };
  for (size_t slot = 0; slot < slots; ++slot) {
    int64_t capacity = std::max<int64_t>(level - loads[slot], 0);
    const bool last = slot + 1 == slots;
    if (taken > 0) {
      const int64_t before = position;
      place_large(capacity, last || !whole[slot].empty());
      capacity -= position - before;
    }
    for (int i : whole[slot]) {
      layout.entries.push_back({i, position, tensors[static_cast<size_t>(i)].shape.elements()});
      position += padded(tensors[static_cast<size_t>(i)]);
    }
    while (next < large.size() && taken == 0 && (last || capacity > 0)) {
      const int64_t before = position;
      if (!place_large(capacity, last)) break;
      capacity -= position - before;
    }
    layout.cuts.push_back(position);
  }
  layout.elements = position;
  return layout;
}

}  // namespace dmuon
