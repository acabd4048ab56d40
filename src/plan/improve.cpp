#include <algorithm>
#include <numeric>

#include "plan/greedy.h"

namespace dmuon {
namespace {

constexpr double least_gain = 1e-9;  // relative; smaller ones are rounding
constexpr int most_steps = 20000;
constexpr int most_exchanged = 16;  // matrices of one group that an exchange moves at once

struct Part {  // some matrices of one group on one slot
  size_t group = 0;
  int size = 0;
  double saved = 0.0;  // when they leave
};

struct Step {
  Part out, back;  // back.size = 0: a move, not an exchange
  size_t to = 0;
  double larger = 0.0, sum = 0.0;  // new loads of the two slots
};

class Search {
 public:
  Search(const Work& work, Counts& counts) : work_(work), counts_(counts), loads_(loads_of(work, counts)), bytes_(bytes_of(work, counts)) {}

  void run(const std::vector<int>& slots) {
    for (int step = 0; step < most_steps; ++step) {
      size_t fullest = static_cast<size_t>(slots[0]);
      for (int slot : slots)
        if (loads_[static_cast<size_t>(slot)] > loads_[fullest]) fullest = static_cast<size_t>(slot);
      if (!improve_pair(fullest, slots)) return;
    }
  }

 private:
  int count(size_t group, size_t slot) const { return counts_[group][slot]; }
  double added(const Part& part, size_t slot) const {
    const std::vector<double>& cost = work_.groups[part.group].table.cost;
    const auto here = static_cast<size_t>(count(part.group, slot));
    return cost[here + static_cast<size_t>(part.size)] - cost[here];
  }
  int64_t bytes(const Part& part) const { return part.size * work_.groups[part.group].bytes; }

  std::vector<Part> parts_of(size_t slot) const {
    std::vector<Part> parts;
    for (size_t g = 0; g < work_.groups.size(); ++g) {
      const std::vector<double>& cost = work_.groups[g].table.cost;
      const int here = count(g, slot);
      for (int size = 1; size <= std::min(here, most_exchanged); ++size)
        parts.push_back({g, size, cost[static_cast<size_t>(here)] - cost[static_cast<size_t>(here - size)]});
    }
    return parts;
  }

  bool improve_pair(size_t from, const std::vector<int>& slots) {
    const std::vector<Part> parts = parts_of(from);
    Step best;
    best.larger = loads_[from] * (1.0 - least_gain);
    bool found = false;
    const auto consider = [&](const Part& out, const Part& back, size_t to, double from_load, double to_load) {
      const double larger = std::max(from_load, to_load), sum = from_load + to_load;
      if (larger < best.larger || (found && larger == best.larger && sum < best.sum)) {
        best = {out, back, to, larger, sum};
        found = true;
      }
    };
    for (int slot : slots) {
      const auto to = static_cast<size_t>(slot);
      if (to == from) continue;
      const std::vector<Part> others = parts_of(to);
      for (const Part& out : parts) {
        const double from_load = loads_[from] - out.saved, to_load = loads_[to] + added(out, to);
        const int64_t to_bytes = bytes_[to] + bytes(out);
        if (to_bytes <= work_.slot_bytes) consider(out, {}, to, from_load, to_load);
        for (const Part& back : others) {
          if (back.group == out.group) continue;
          if (to_bytes - bytes(back) > work_.slot_bytes || bytes_[from] - bytes(out) + bytes(back) > work_.slot_bytes) continue;
          consider(out, back, to, from_load + added(back, from), to_load - back.saved);
        }
      }
    }
    if (!found) return false;
    counts_[best.out.group][from] -= best.out.size;
    counts_[best.out.group][best.to] += best.out.size;
    counts_[best.back.group][best.to] -= best.back.size;
    counts_[best.back.group][from] += best.back.size;
    for (size_t slot : {from, best.to}) loads_[slot] = load_of(work_, counts_, static_cast<int>(slot));
    bytes_ = bytes_of(work_, counts_);
    return true;
  }

  const Work& work_;
  Counts& counts_;
  std::vector<double> loads_;
  std::vector<int64_t> bytes_;
};

}  // namespace

void improve(const Work& work, Counts& counts, const std::vector<int>& slots) {
  if (work.groups.empty() || work.slots < 2) return;
  std::vector<int> all(slots);
  if (all.empty()) {
    all.resize(static_cast<size_t>(work.slots));
    std::iota(all.begin(), all.end(), 0);
  }
  Search(work, counts).run(all);
}

}  // namespace dmuon
