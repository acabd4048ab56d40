// The assignment problem behind a plan: matrices that are interchangeable form a group, and what a group costs on a slot
// depends only on how many of its matrices lie there. Owners are then counts per group and slot.
#pragma once

#include <cstdint>
#include <vector>

#include "dmuon/plan/cost_model.h"
#include "dmuon/plan/plan.h"

namespace dmuon {

// Cheapest batches of k = 0 .. n equal matrices, found by dynamic programming over the size of the last batch.
struct BatchTable {
  std::vector<double> cost;  // [n + 1] of updating k matrices on one slot in their cheapest batches; subadditive
  std::vector<int> last;     // [n + 1] size of one batch of that plan; k - last[k] remain
  std::vector<int> sizes;    // batch sizes that no split into smaller ones matches; ascending, starts with 1

  double batch_cost(int size) const { return cost[static_cast<size_t>(size)]; }  // of a size that batches() returns
  // Sizes of the cheapest batches of k matrices, descending.
  std::vector<int> batches(int k) const;
};
// `single` is the cost of one matrix without measurements. With them, the size of a batch is at most the largest one
// measured, and between two measured sizes the cost is interpolated.
BatchTable make_batch_table(int count, const ShapeCost* measured, double single);

// Whole tensors of one rule and shape (a class) whose units share a window.
struct WorkGroup {
  int kind = 0;  // index of the class; groups of one class have equal tables as far as both go
  int window = 0;
  std::vector<int> tensors;  // ascending
  BatchTable table;
  int64_t elements = 0, bytes = 0;  // of one matrix; bytes as held by its owner
  int count() const { return static_cast<int>(tensors.size()); }
};

struct Work {
  int slots = 1;
  int64_t slot_bytes = 0;         // bound of the bytes of matrices on one slot; int64 maximum without one
  std::vector<WorkGroup> groups;  // by first tensor

  double lower_bound() const;  // max(sum of the cheapest batches / slots, largest matrix)
  double least_work() const;   // sum of the cheapest batches
};
Work make_work(const std::vector<PlanTensor>& tensors, const PlanOptions& options);

// counts[group][slot], each group's counts adding up to its size.
using Counts = std::vector<std::vector<int>>;

double load_of(const Work& work, const Counts& counts, int slot);
double makespan_of(const Work& work, const Counts& counts);
std::vector<double> loads_of(const Work& work, const Counts& counts);
std::vector<int64_t> bytes_of(const Work& work, const Counts& counts);
// Of a plan's owners.
Counts counts_of(const Work& work, const std::vector<int>& owners);

}  // namespace dmuon
