#include "plan/layout.h"

#include <algorithm>
#include <numeric>

#include "dmuon/core/checked.h"

namespace dmuon {
namespace {

int64_t padded(const PlanTensor& tensor) { return round_up(tensor.shape.elements(), tensor_alignment); }

// The amount that every slot takes when `amount` is poured on top of `levels`: the lowest fill up first.
std::vector<int64_t> pour(const std::vector<int64_t>& levels, int64_t amount) {
  std::vector<int64_t> sorted = levels;
  std::sort(sorted.begin(), sorted.end());
  int64_t level = 0, below = 0;
  for (size_t k = 1; k <= sorted.size(); ++k) {
    below += sorted[k - 1];
    level = divide_up(below + amount, static_cast<int64_t>(k));
    if (k == sorted.size() || level <= sorted[k]) break;
  }
  std::vector<int64_t> taken;
  for (int64_t height : levels) taken.push_back(std::max<int64_t>(level - height, 0));
  return taken;
}

// The tensors of one unit, by how they are placed.
struct UnitTensors {
  std::vector<std::vector<int>> whole;  // in one piece, by slot
  std::vector<int> large;               // may be cut
  int64_t large_elements = 0, large_bytes = 0;
};

// Large tensors flow through the slots in order. A tensor that continues from the slot before comes first, then the
// slot's whole tensors, then new large tensors up to the slot's capacity; so every tensor stays contiguous. Where whole
// tensors stand in the way of a tensor that would have to pass through, the tensor ends here.
class Pouring {
 public:
  Pouring(const std::vector<PlanTensor>& tensors, const UnitTensors& unit, int64_t cut_elements)
      : tensors_(tensors), unit_(unit), cut_elements_(cut_elements) {}

  // capacities[slot]: elements of large tensors that it is to take.
  UnitLayout run(const std::vector<int64_t>& capacities) {
    layout_.cuts.push_back(0);
    const size_t slots = capacities.size();
    int64_t capacity = 0;  // what one slot takes too much or too little, the next ones make up for
    for (size_t slot = 0; slot < slots; ++slot) {
      capacity += capacities[slot];
      const bool last = slot + 1 == slots;
      if (taken_ > 0) capacity -= take(capacity, last || !unit_.whole[slot].empty());
      for (int tensor : unit_.whole[slot]) {
        layout_.entries.push_back({tensor, position_, tensors_[static_cast<size_t>(tensor)].shape.elements()});
        position_ += padded(tensors_[static_cast<size_t>(tensor)]);
      }
      while (next_ < unit_.large.size() && taken_ == 0 && (last || capacity > 0)) {
        const int64_t count = take(capacity, last);
        if (count == 0) break;
        capacity -= count;
      }
      layout_.cuts.push_back(position_);
    }
    layout_.elements = position_;
    return std::move(layout_);
  }

 private:
  // Of the next large tensor: up to the nearest cut to `capacity`, or what is left of it. Returns the elements taken.
  int64_t take(int64_t capacity, bool all) {
    const int tensor = unit_.large[next_];
    const int64_t elements = tensors_[static_cast<size_t>(tensor)].shape.elements();
    const int64_t left = elements - taken_;
    const int64_t nearest = (std::max<int64_t>(capacity, 0) + cut_elements_ / 2) / cut_elements_ * cut_elements_;
    const int64_t count = all ? left : std::min(left, nearest);
    if (count == 0) return 0;
    if (taken_ == 0) layout_.entries.push_back({tensor, position_, elements});
    taken_ += count;
    if (taken_ < elements) {
      position_ += count;
    } else {
      position_ += round_up(count, tensor_alignment);
      taken_ = 0;
      ++next_;
    }
    return count;
  }

  const std::vector<PlanTensor>& tensors_;
  const UnitTensors& unit_;
  int64_t cut_elements_;
  UnitLayout layout_;
  size_t next_ = 0;       // of unit_.large
  int64_t taken_ = 0;     // elements of it already placed
  int64_t position_ = 0;  // in the buffer
};

}  // namespace

std::vector<UnitLayout> make_layouts(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options,
                                     const std::vector<int>& owners) {
  const auto slots = static_cast<size_t>(options.slots);
  std::vector<UnitTensors> of_unit(static_cast<size_t>(units));
  std::vector<int64_t> bytes(slots, 0);  // held by every slot, of what is placed so far
  const auto bytes_of = [&](int tensor) {
    return padded(tensors[static_cast<size_t>(tensor)]) * held_bytes_per_element(tensors[static_cast<size_t>(tensor)]);
  };
  for (UnitTensors& unit : of_unit) unit.whole.resize(slots);
  const auto place_whole = [&](int tensor, size_t slot) {
    of_unit[static_cast<size_t>(tensors[static_cast<size_t>(tensor)].unit)].whole[slot].push_back(tensor);
    bytes[slot] += bytes_of(tensor);
  };
  const bool on_one = options.strategy == PlanStrategy::rank0;
  std::vector<int> small;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int tensor = static_cast<int>(i);
    if (!in_plan(tensors[i])) continue;
    UnitTensors& unit = of_unit[static_cast<size_t>(tensors[i].unit)];
    if (tensors[i].whole || on_one) {
      place_whole(tensor, tensors[i].whole ? static_cast<size_t>(owners[i]) : 0);
    } else if (tensors[i].shape.elements() > options.cut_elements) {
      unit.large.push_back(tensor);
      unit.large_elements += padded(tensors[i]);
      unit.large_bytes += bytes_of(tensor);
    } else {
      small.push_back(tensor);
    }
  }

  // Small tensors before the large ones, which then fill what they leave; the largest unit last: it levels most.
  for (int tensor : small) place_whole(tensor, static_cast<size_t>(std::min_element(bytes.begin(), bytes.end()) - bytes.begin()));
  std::vector<UnitLayout> layouts(static_cast<size_t>(units));
  std::vector<size_t> order(layouts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return of_unit[a].large_bytes < of_unit[b].large_bytes; });
  for (size_t index : order) {
    const UnitTensors& unit = of_unit[index];
    std::vector<int64_t> capacities(slots, 0);
    const int64_t per_element = unit.large.empty() ? 1 : divide_up(unit.large_bytes, unit.large_elements);
    if (!unit.large.empty()) capacities = pour(bytes, unit.large_bytes);
    for (int64_t& capacity : capacities) capacity /= per_element;
    layouts[index] = Pouring(tensors, unit, options.cut_elements).run(capacities);
    // What the slots got: cuts fall on multiples, and whole tensors stand in the way.
    for (int tensor : unit.large) {
      const auto entry =
          std::find_if(layouts[index].entries.begin(), layouts[index].entries.end(), [&](const auto& e) { return e.tensor == tensor; });
      for (size_t slot = 0; slot < slots; ++slot) {
        const int64_t begin = std::max(entry->offset, layouts[index].cuts[slot]);
        const int64_t end = std::min(entry->offset + entry->elements, layouts[index].cuts[slot + 1]);
        bytes[slot] += std::max<int64_t>(end - begin, 0) * held_bytes_per_element(tensors[static_cast<size_t>(tensor)]);
      }
    }
  }
  return layouts;
}

}  // namespace dmuon
