// Who owns what, and where every tensor lies in its unit's buffer. Pure functions of their inputs: every rank computes
// the same plan; a hash of it is compared before the first step. A plan changes who computes, never what.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/json.h"
#include "dmuon/core/shape.h"

namespace dmuon {

// Starts of tensors are multiples of this many elements; the padding between them is zero and outside norms, hashes
// and byte counts.
inline constexpr int64_t tensor_alignment = 64;

struct PlanTensor {
  std::string name;
  Shape shape;
  int unit = 0;
  bool whole = false;  // its rule needs the whole tensor, so it must lie inside one slot
  double cost = 0.0;   // of one update, in any unit: seconds or FLOPs; only compared with each other
};

enum class PlanStrategy : uint8_t {
  greedy,       // longest processing time first on the costs
  round_robin,  // in order of the inventory
  rank0         // everything on slot 0
};
PlanStrategy plan_strategy_from_name(std::string_view name);  // ConfigError naming the allowed values

struct PlanOptions {
  int slots = 1;  // replicas * shards
  PlanStrategy strategy = PlanStrategy::greedy;
  int64_t cut_elements = 16384;  // a cut falls on multiples of this many elements from its tensor's start
};

// A contiguous buffer: tensors at offsets, cut into one slot per rank.
struct UnitLayout {
  struct Entry {
    int tensor = 0;  // index into the inventory the plan was made from
    int64_t offset = 0;
    int64_t elements = 0;
  };
  std::vector<Entry> entries;  // by ascending offset
  int64_t elements = 0;        // of the buffer, padding included
  std::vector<int64_t> cuts;   // slots + 1; slot s is [cuts[s], cuts[s + 1])
};

// A piece of a tensor that one slot holds: elements [first, first + count) of the tensor.
struct Piece {
  int tensor = 0;
  int unit = 0;
  int64_t first = 0, count = 0;
  int64_t offset = 0;  // of its first element in the unit's buffer
};

struct Plan {
  int slots = 1;
  int64_t cut_elements = 16384;
  std::string strategy;
  std::vector<int> owners;  // per tensor: the slot of its first element (all of it when whole)
  std::vector<UnitLayout> units;
  std::vector<double> loads;  // cost per slot of the whole tensors
  double lower_bound = 0.0;   // max(sum of costs / slots, largest cost)

  // Pieces of a slot in the order of units and offsets.
  std::vector<Piece> pieces(int slot) const;
  double makespan() const;
  Json to_json(const std::vector<PlanTensor>& tensors) const;
  uint64_t hash() const;
};

// ConfigError when options are out of range; ShapeError when a unit index is.
Plan make_plan(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options);
// The same with given owners for whole tensors (tests use random ones); entries of other tensors are ignored.
Plan make_plan_with_owners(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options, const std::vector<int>& owners);

}  // namespace dmuon
