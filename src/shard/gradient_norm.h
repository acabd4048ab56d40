// The norm of the job's gradient: partial sums of squares in float64 over fixed chunks of each tensor, each from the one
// rank that holds the chunk, added in (name, chunk) order. So it has the same bits for every grid, stage and plan.
// What is agreed by vote counts with the mean over replicas of the square of each worker's gradient.
#pragma once

#include <span>
#include <vector>

#include "shard/unit_store.h"

namespace dmuon {

class GradientNorm {
 public:
  GradientNorm(ShardJob& job, UnitStore& store);

  // Collective: norm, finiteness, and the sums of `extras` over ranks.
  GradientReport agree(std::span<const double> extras);
  const std::vector<int>& name_order() const { return name_order_; }

 private:
  ShardJob& job_;
  UnitStore& store_;
  std::vector<int> name_order_;        // parameters with a rule, by name
  std::vector<int64_t> first_chunk_;   // per entry of name_order_
  std::vector<int64_t> held_offsets_;  // per held piece: its first chunk in the vector of partial sums
  int64_t chunks_ = 0;
  Tensor partials_;
};

}  // namespace dmuon
