#include "plan/plan_support.h"

namespace dmuon {

void check_plan(const Plan& plan, const std::vector<PlanTensor>& tensors) {
  std::map<int, int64_t> covered;
  std::map<int, std::vector<std::pair<int64_t, int64_t>>> ranges;
  for (int slot = 0; slot < plan.slots; ++slot)
    for (const Piece& piece : plan.pieces(slot)) {
      covered[piece.tensor] += piece.count;
      ranges[piece.tensor].push_back({piece.first, piece.first + piece.count});
      const PlanTensor& tensor = tensors[static_cast<size_t>(piece.tensor)];
      if (tensor.whole) {
        REQUIRE(piece.first == 0);
        REQUIRE(piece.count == tensor.shape.elements());
        REQUIRE(plan.owners[static_cast<size_t>(piece.tensor)] == slot);
      }
      REQUIRE(piece.first % plan.cut_elements == 0);
      if (tensor.shape.elements() <= plan.cut_elements) REQUIRE(piece.count == tensor.shape.elements());
    }
  for (size_t i = 0; i < tensors.size(); ++i) {
    REQUIRE(covered[static_cast<int>(i)] == tensors[i].shape.elements());
    auto& list = ranges[static_cast<int>(i)];
    std::sort(list.begin(), list.end());
    for (size_t k = 1; k < list.size(); ++k) REQUIRE(list[k].first == list[k - 1].second);
  }
  for (const UnitLayout& unit : plan.units) {
    REQUIRE(unit.cuts.size() == static_cast<size_t>(plan.slots) + 1);
    REQUIRE(unit.cuts.front() == 0);
    REQUIRE(unit.cuts.back() == unit.elements);
    REQUIRE(std::is_sorted(unit.cuts.begin(), unit.cuts.end()));
    int64_t end = 0;
    for (const auto& entry : unit.entries) {
      REQUIRE(entry.offset >= end);
      REQUIRE(entry.offset % tensor_alignment == 0);
      end = entry.offset + entry.elements;
    }
    REQUIRE(end <= unit.elements);
  }
  std::vector<double> loads(static_cast<size_t>(plan.slots), 0.0);
  std::map<int, int> batched;
  for (const PlanBatch& batch : plan.batches) {
    loads[static_cast<size_t>(batch.slot)] += batch.cost;
    REQUIRE(std::is_sorted(batch.tensors.begin(), batch.tensors.end()));
    for (int index : batch.tensors) {
      const PlanTensor& tensor = tensors[static_cast<size_t>(index)];
      REQUIRE(tensor.whole);
      REQUIRE(tensor.shape == tensors[static_cast<size_t>(batch.tensors[0])].shape);
      REQUIRE(plan.owners[static_cast<size_t>(index)] == batch.slot);
      REQUIRE(plan.window_of_unit[static_cast<size_t>(tensor.unit)] == batch.window);
      REQUIRE(++batched[index] == 1);
    }
  }
  for (size_t i = 0; i < tensors.size(); ++i) REQUIRE(batched.count(static_cast<int>(i)) == (tensors[i].whole ? 1 : 0));
  for (size_t slot = 0; slot < loads.size(); ++slot) REQUIRE(plan.loads[slot] == Approx(loads[slot]));
  REQUIRE(plan.lower_bound <= plan.makespan() * (1.0 + 1e-9));
}

}  // namespace dmuon
