#include "shard/pass_schedule.h"

#include <algorithm>
#include <numeric>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// Appends, for entries [first, first + enters.size()), the position before which each is left: scopes are left in the
// order `leaves`, each as early as that order allows, which is exact for properly nested scopes.
void append_left(const std::vector<int>& enters, const std::vector<int>& leaves, int first, std::vector<int>& left) {
  const size_t base = left.size();
  left.resize(base + enters.size(), -1);
  std::vector<size_t> open;
  size_t next = 0;  // in leaves
  for (size_t i = 0; i < enters.size(); ++i) {
    open.push_back(i);
    while (next < leaves.size()) {
      const auto found = std::find_if(open.begin(), open.end(), [&](size_t o) { return enters[o] == leaves[next]; });
      if (found == open.end()) break;
      left[base + *found] = first + static_cast<int>(i) + 1;
      open.erase(found);
      ++next;
    }
  }
  if (!open.empty()) throw ConfigError("Model::backward_order() is not the reverse of the order in which forward scopes are left");
}

}  // namespace

UseOrder make_use_order(const std::vector<int>& forward, const std::vector<int>& backward, int units_of_model) {
  for (const std::vector<int>* order : {&forward, &backward})
    for (int unit : *order)
      if (unit < 0 || unit >= units_of_model)
        throw ConfigError(text("the model's order of uses names unit ", unit, " of ", units_of_model));
  UseOrder order;
  order.units = forward;
  order.units.insert(order.units.end(), backward.begin(), backward.end());
  order.forward_uses = static_cast<int>(forward.size());
  append_left(forward, {backward.rbegin(), backward.rend()}, 0, order.left);
  append_left(backward, {forward.rbegin(), forward.rend()}, order.forward_uses, order.left);
  return order;
}

std::vector<int> UseOrder::first_uses(int units_of_model) const {
  std::vector<int> first;
  std::vector<bool> seen(static_cast<size_t>(units_of_model), false);
  const auto add = [&](int unit) {
    if (!seen[static_cast<size_t>(unit)]) first.push_back(unit);
    seen[static_cast<size_t>(unit)] = true;
  };
  for (int i = 0; i < forward_uses; ++i) add(units[static_cast<size_t>(i)]);
  for (int unit = 0; unit < units_of_model; ++unit) add(unit);
  return first;
}

// The largest first, each into the smallest buffer that is free over its lifetime.
BufferPlan plan_buffers(const std::vector<Lifetime>& lifetimes) {
  std::vector<size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lifetimes[a].elements > lifetimes[b].elements; });
  BufferPlan plan;
  plan.buffer.assign(lifetimes.size(), -1);
  std::vector<std::vector<size_t>> users;
  for (size_t i : order) {
    size_t chosen = users.size();
    for (size_t b = users.size(); b-- > 0;) {  // the later made, the smaller
      const bool free = std::none_of(users[b].begin(), users[b].end(), [&](size_t j) {
        return lifetimes[i].first <= lifetimes[j].last && lifetimes[j].first <= lifetimes[i].last;
      });
      if (free) {
        chosen = b;
        break;
      }
    }
    if (chosen == users.size()) {
      users.emplace_back();
      plan.elements.push_back(lifetimes[i].elements);
    }
    users[chosen].push_back(i);
    plan.buffer[i] = static_cast<int>(chosen);
  }
  return plan;
}

PassSchedule make_pass_schedule(const UseOrder& order, const std::vector<int64_t>& elements, int look_ahead) {
  const auto uses = static_cast<size_t>(order.uses());
  PassSchedule schedule;
  schedule.fills.assign(uses, false);
  schedule.keeps.assign(uses, false);
  schedule.buffer.assign(uses, -1);
  std::vector<Lifetime> lifetimes;
  std::vector<size_t> lifetime_of(uses, 0);
  std::vector<int> latest(elements.size(), -1);  // position of a unit's latest use
  for (size_t p = 0; p < uses; ++p) {
    const auto unit = static_cast<size_t>(order.units[p]);
    if (elements[unit] == 0) continue;
    const int position = static_cast<int>(p), begin = std::max(0, position - look_ahead);
    const int before = latest[unit];
    // Kept when the next use is in sight, or when its filling would start while this use is still open.
    if (before >= 0 && (position - before <= std::max(look_ahead, 1) || begin < order.left[static_cast<size_t>(before)])) {
      schedule.keeps[static_cast<size_t>(before)] = true;
      lifetime_of[p] = lifetime_of[static_cast<size_t>(before)];
      lifetimes[lifetime_of[p]].last = order.left[p] - 1;
    } else {
      schedule.fills[p] = true;
      lifetime_of[p] = lifetimes.size();
      lifetimes.push_back({begin, order.left[p] - 1, elements[unit]});
    }
    latest[unit] = position;
  }
  const BufferPlan plan = plan_buffers(lifetimes);
  schedule.pool = plan.elements;
  for (size_t p = 0; p < uses; ++p)
    if (elements[static_cast<size_t>(order.units[p])] != 0) schedule.buffer[p] = plan.buffer[lifetime_of[p]];
  return schedule;
}

}  // namespace dmuon
