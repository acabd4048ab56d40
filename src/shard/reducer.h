// Brings gradients home: a unit's gradient buffer is filled by its backward, then leaves for the owners on the gradient
// streams while earlier units still compute.
//
// Units leave in one static order, the reverse of that in which the forward pass first uses them, never in the order of
// readiness; a unit or a parameter that this rank did not use leaves as zeros. A unit's regions leave one after the other, each
// between the ranks that share it; one that this rank shares with nobody collects where it will be read.
#pragma once

#include <vector>

#include "shard/pass_schedule.h"
#include "shard/unit_store.h"

namespace dmuon {

class Reducer {
 public:
  Reducer(ShardJob& job, UnitStore& store, const UseOrder& order);

  // `micro_batches` where known: gradients that are kept then leave during the last one, otherwise in finish().
  void begin_step(int64_t micro_batches);
  void begin_micro_batch();
  void enter_backward(int unit);                      // gives the unit's parameters somewhere to put gradients
  void leave_backward(int unit);                      // the last use of the unit: it leaves as soon as its turn comes
  void pass_over(int unit) { leave_backward(unit); }  // a use that this rank does not run
  void end_micro_batch();
  // Everything has left and arrived.
  void finish();
  // The reduced gradient of a whole unit on every rank, in `buffer` (the gather baseline, without votes); waits. Undefined when
  // no tensor of the unit is updated whole.
  Tensor gather_reduced(int unit, const Tensor& buffer);

 private:
  struct RegionState {
    Tensor full;           // where backward writes: always when kept, else while the unit is open
    bool kept = false;     // collects over the micro-batches and leaves once a step
    bool reduced = false;  // kept ones: has left in this step
    bool narrow = false;   // travels in another dtype than it is computed in
    int buffer = -1;       // of pool_; -1: kept
    int wire = -1;         // of wire_pool_; -1: not narrow
    Event sent;            // its latest reduction
  };
  struct UnitState {
    bool ready = false;  // its last backward use in this micro-batch is over
    int uses = 0;        // backward uses left in this micro-batch
  };
  struct PoolBuffer {
    Tensor memory;
    Event sent;  // the latest reduction out of it
  };
  UnitState& state(int unit) { return units_[static_cast<size_t>(unit)]; }
  RegionState& state(const Region& region) { return regions_[static_cast<size_t>(region.index)]; }
  bool last_micro_batch() const { return announced_ > 0 && micro_batches_ + 1 == announced_; }
  void keep(const Region& region);
  void make_pools(const UseOrder& order);
  void bind(const Region& region);
  void open(const Region& region);
  void complete(const Region& region);
  void dispatch_ready();
  void reduce(const Region& region);
  void release(const Region& region);
  Event scatter(const Region& region, const Tensor& wire, const Tensor& result, bool accumulate);
  Event gather(const Region& region, const Tensor& full, Event ready);

  ShardJob& job_;
  UnitStore& store_;
  std::vector<UnitState> units_;
  std::vector<RegionState> regions_;
  std::vector<int> order_;                    // of reductions
  std::vector<int> uses_;                     // per unit: backward uses in a micro-batch
  std::vector<PoolBuffer> pool_, wire_pool_;  // float32; in gradient_dtype
  size_t next_ = 0;                           // in order_
  int64_t micro_batches_ = 0, announced_ = 0;
};

}  // namespace dmuon
