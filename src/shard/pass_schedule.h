// The static schedule of a pass over the model: which unit is used when, for which uses its values have to be gathered,
// how long they stay, and which buffer of a fixed pool they lie in. A pure function of the declared orders, so that it is
// the same on every rank, whether a rank runs the pass or only enters its collectives.
#pragma once

#include <cstdint>
#include <vector>

namespace dmuon {

// When each use is over: left[i] is the first position that is entered after use i has been left, scopes being properly
// nested. Forward positions come first, then backward ones.
struct UseOrder {
  std::vector<int> units;  // by position: the forward uses, then the backward uses
  int forward_uses = 0;
  std::vector<int> left;

  int uses() const { return static_cast<int>(units.size()); }
  // Forward uses by first appearance: the order in which units are published; its reverse is that of reductions. Units
  // that the model never uses come last.
  std::vector<int> first_uses(int units_of_model) const;
};
// ConfigError when the backward order does not mirror the forward order.
UseOrder make_use_order(const std::vector<int>& forward, const std::vector<int>& backward, int units_of_model);

// Intervals of positions during which something occupies memory; overlapping ones get different buffers.
struct Lifetime {
  int first = 0, last = 0;  // inclusive
  int64_t elements = 0;
};
struct BufferPlan {
  std::vector<int> buffer;        // per lifetime
  std::vector<int64_t> elements;  // per buffer
};
BufferPlan plan_buffers(const std::vector<Lifetime>& lifetimes);

// Values in pool buffers: `elements[unit]` of each unit that needs one, 0 for those whose values are always there.
struct PassSchedule {
  std::vector<bool> fills;    // per position: the values are brought into the buffer for this use
  std::vector<bool> keeps;    // per position: they stay for the unit's next use
  std::vector<int> buffer;    // per position; -1: always there
  std::vector<int64_t> pool;  // elements of each buffer
};
// Filling use p starts when position p - look_ahead is entered.
PassSchedule make_pass_schedule(const UseOrder& order, const std::vector<int64_t>& elements, int look_ahead);

}  // namespace dmuon
