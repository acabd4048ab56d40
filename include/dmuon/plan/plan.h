// Who owns what, and where every tensor lies in its unit's buffer. Pure functions of their inputs: every rank computes
// the same plan, except with PlanStrategy::milp, which has a time limit: there one rank plans and the others read its
// plan (to_json, plan_from_json). A hash of it is compared before the first step. A plan changes who computes, never what.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/json.h"
#include "dmuon/core/shape.h"

namespace dmuon {

class CostModel;
class MilpSolver;

// Starts of tensors are multiples of this many elements; the padding between them is zero and outside norms, hashes
// and byte counts.
inline constexpr int64_t tensor_alignment = 64;

struct PlanTensor {
  std::string name;
  Shape shape;
  int unit = 0;                     // -1: of another plan of the same inventory; this plan leaves it out
  bool whole = false;               // its rule needs the whole tensor, so it must lie inside one slot
  double cost = 0.0;                // of one update, in any unit: seconds or FLOPs; only compared with each other
  int rule = 0;                     // only tensors of one rule and one shape share a batch
  int state_bytes_per_element = 4;  // of the optimizer state that its owner keeps
};

// Tensors of one inventory may be split over two plans (those agreed by mean and those agreed by vote have other slots):
// each plan gets all of them, so that indices stay those of the inventory, with unit -1 for those of the other.
inline bool in_plan(const PlanTensor& tensor) { return tensor.unit >= 0; }

// Bytes that the holder of a slot keeps for one element: float32 master, float32 gradient, state.
inline int64_t held_bytes_per_element(const PlanTensor& tensor) { return 8 + tensor.state_bytes_per_element; }

enum class PlanStrategy : uint8_t {
  greedy,       // longest processing time first on the costs of the cheapest batches, then local improvement
  round_robin,  // in order of the inventory
  rank0,        // everything on slot 0
  milp          // mixed-integer program started from greedy; greedy where there is no solver or no time
};
PlanStrategy plan_strategy_from_name(std::string_view name);  // ConfigError naming the allowed values
const char* name_of(PlanStrategy strategy);

struct PlanOptions {
  int slots = 1;  // replicas * shards
  PlanStrategy strategy = PlanStrategy::greedy;
  int64_t cut_elements = 16384;  // a cut falls on multiples of this many elements from its tensor's start
  int window_units = 4;          // consecutive units that are updated together and then published
  int replicas = 1;              // of the grid; slot = shard * replicas + replica
  int shards = 0;                // 0: slots / replicas
  // Of masters, gradients and optimizer state on one rank; 0: no bound.
  int64_t memory_limit_bytes = 0;
  double time_limit_seconds = 10.0;       // for milp
  const CostModel* cost_model = nullptr;  // measured costs; without one PlanTensor::cost, whatever the batch
  MilpSolver* solver = nullptr;           // for milp; null: the one of this build
};

// A contiguous buffer: tensors at offsets, cut into one slot per rank.
struct UnitLayout {
  struct Entry {
    int tensor = 0;  // index into the inventory the plan was made from
    int64_t offset = 0;
    int64_t elements = 0;
    friend bool operator==(const Entry&, const Entry&) = default;
  };
  std::vector<Entry> entries;  // by ascending offset
  int64_t elements = 0;        // of the buffer, padding included
  std::vector<int64_t> cuts;   // slots + 1; slot s is [cuts[s], cuts[s + 1])
  friend bool operator==(const UnitLayout&, const UnitLayout&) = default;
};

// A piece of a tensor that one slot holds: elements [first, first + count) of the tensor.
struct Piece {
  int tensor = 0;
  int unit = 0;
  int64_t first = 0, count = 0;
  int64_t offset = 0;  // of its first element in the unit's buffer
};

// Whole tensors of one rule and one shape that their owner updates in one call.
struct PlanBatch {
  int slot = 0;
  int window = 0;
  std::vector<int> tensors;  // ascending; their units lie in `window`
  double cost = 0.0;         // expected, of the whole batch
  friend bool operator==(const PlanBatch&, const PlanBatch&) = default;
};

// How the owners were found.
struct PlanSearch {
  std::string method;            // the strategy that made the owners: "milp" only where its result is used
  bool measured = false;         // costs are seconds of a cost model, not PlanTensor::cost
  double greedy_makespan = 0.0;  // 0: not computed
  double milp_makespan = 0.0;    // 0: no solution
  double lower_bound = 0.0;      // no plan in these windows is faster
  int64_t variables = 0;         // of the largest program solved
  double seconds = 0.0;          // spent on programs
  // Why greedy's owners stand in for milp's; empty when they do not, also when greedy's are within 0.05 % of the lower bound,
  // so that a program has nothing to gain.
  std::string fallback;
};

// What a person wants to know of a plan, and what logs and tools print.
struct PlanReport {
  PlanSearch search;
  std::string strategy;  // as asked for
  int slots = 1, replicas = 1, shards = 1, windows = 0;
  int64_t matrices = 0, batches = 0, largest_batch = 0;
  double makespan = 0.0;
  double gap = 0.0;                     // makespan / lower bound - 1; 0 without matrices
  std::vector<double> loads;            // cost per slot
  std::vector<int64_t> bytes;           // held per slot: masters, gradients, optimizer state
  double load_ratio = 1.0;              // largest load / mean load
  double bytes_ratio = 1.0;             // bytes of the fullest slot / mean bytes
  std::vector<double> publish_balance;  // per unit: slots * largest slot / elements (gamma); 1 is level

  // A few lines: method, makespans, bound, gap, levels; the reason where greedy stands in for milp.
  std::string to_text() const;
  Json to_json() const;
};

struct Plan {
  int slots = 1;
  int replicas = 1, shards = 1;
  int64_t cut_elements = 16384;
  std::string strategy;     // as asked for; search.method is what was used
  std::vector<int> owners;  // per tensor: the slot of its first element (all of it when whole); -1: not in this plan
  std::vector<UnitLayout> units;
  std::vector<int> window_of_unit;  // per unit, ascending from 0: units whose updates are published together
  std::vector<PlanBatch> batches;   // by (window, slot, first tensor); every whole tensor is in exactly one
  std::vector<double> loads;        // cost per slot of its batches
  double lower_bound = 0.0;         // max(sum of the cheapest batches / slots, largest cost), or the solver's if better
  PlanSearch search;

  int windows() const { return window_of_unit.empty() ? 0 : window_of_unit.back() + 1; }
  // Pieces of a slot in the order of units and offsets.
  std::vector<Piece> pieces(int slot) const;
  double makespan() const;
  // Per slot: masters, gradients and optimizer state of its pieces.
  std::vector<int64_t> bytes(const std::vector<PlanTensor>& tensors) const;
  PlanReport report(const std::vector<PlanTensor>& tensors) const;
  Json to_json(const std::vector<PlanTensor>& tensors) const;
  // Of everything that ranks must agree on: all but costs and the search.
  uint64_t hash() const;
};

// ConfigError when options are out of range, or when the memory bound leaves no plan (names the tensor or the bound
// and what would fit); ShapeError when a unit index is (-1 is legal: the tensor is left out).
Plan make_plan(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options);
// The same with given owners for whole tensors (tests use random ones); entries of other tensors are ignored.
Plan make_plan_with_owners(const std::vector<PlanTensor>& tensors, int units, const PlanOptions& options, const std::vector<int>& owners);

// The plan that to_json wrote, for this inventory (tensors with unit -1 do not occur in it): a resumed run and the ranks that did not plan
// replay it. Throws CheckpointError naming `origin` and the tensor or value that is missing, foreign or inconsistent.
Plan plan_from_json(const Json& json, const std::vector<PlanTensor>& tensors, int units, std::string_view origin);

}  // namespace dmuon
