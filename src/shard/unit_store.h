// The memory of a sharded model: values, masters, optimizer state and reduced gradients of what this rank holds, and what
// it updates. Who fills them when is the business of the publisher, the reducer and the updater.
#pragma once

#include <vector>

#include "shard/shard_job.h"

namespace dmuon {

// What one region of a unit keeps between steps; values in compute dtype.
struct RegionMemory {
  Tensor full;           // a view of the unit's values; undefined at stage 3
  Tensor coarse;         // this shard's segment: a view of `full`, or at stage 3 memory of its own
  Tensor slot;           // this rank's slot: a view of `coarse`
  Tensor master;         // the slot in float32: `slot` itself where values are float32
  Tensor slot_gradient;  // the slot's reduced gradient, float32
};

struct UnitMemory {
  Tensor full;                        // [elements] values in compute dtype; undefined at stage 3
  std::vector<RegionMemory> regions;  // as in UnitBuffer
};

// One call's worth of update: a piece of a tensor, or all of it, with views of what the update reads and writes.
struct UpdateTarget {
  int tensor = 0;
  int unit = 0;
  bool vote = false;             // of a rule that agrees by vote
  int64_t first = 0, count = 0;  // elements of the tensor
  int64_t offset = 0;            // of `first` in the unit's buffer
  Tensor parameter;              // float32, flat
  Tensor gradient;               // flat; undefined where it is gathered for the update
  std::vector<Tensor> state;
  Tensor published;  // bfloat16 copy for the other ranks; undefined where values are float32
};

class UnitStore {
 public:
  explicit UnitStore(ShardJob& job);

  UnitMemory& unit(int index) { return units_[static_cast<size_t>(index)]; }
  // Of a region of the job.
  RegionMemory& memory(const Region& region) {
    UnitMemory& of_unit = unit(region.unit);
    return of_unit.regions[static_cast<size_t>(region.index - job_.regions(region.unit).front().index)];
  }
  std::vector<HeldPiece>& held() { return held_; }
  std::vector<UpdateTarget>& targets() { return targets_; }  // by unit, then offset
  // The values that the unit's parameters are bound to while `full` holds a published unit, in a dtype that the backend computes in.
  void bind(int unit, const Tensor& full);
  void unbind(int unit);
  // Values are always there, in a dtype that the backend computes in.
  bool resident(int index) const { return units_[static_cast<size_t>(index)].full.defined() && !job_.widens(); }
  // Copies the masters of a unit to its slot in compute dtype, where they are apart.
  void copy_master_to_slot(int unit);
  // After a load of the held pieces: state that every rank has a copy of, and replicated masters, from their holders.
  void complete_copies();
  // Running statistics and the like (ParameterRole::buffer), one tensor per rank, agreed by their mean over ranks.
  void average_buffers();
  void share_buffers();  // after a load: everybody's from the holders

 private:
  void build_unit(int index);
  void build_region(const Region& region);
  void add_held(const Region& region);
  void add_targets(const Region& region);
  std::vector<Tensor> make_state(int tensor, int64_t elements);

  ShardJob& job_;
  std::vector<UnitMemory> units_;
  std::vector<HeldPiece> held_;
  std::vector<UpdateTarget> targets_;
  std::vector<std::vector<Tensor>> full_state_;  // by tensor: where every rank keeps all of it; empty otherwise
  Tensor buffers_;                               // all buffers, one after the other
  std::vector<int64_t> buffer_offset_;           // by tensor; -1
};

}  // namespace dmuon
