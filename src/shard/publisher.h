// Brings values to the ranks that compute with them: after an update, between nodes and to the units whose values are
// always there; during a pass, inside the node and into pool buffers, ahead of the uses that need them.
//
// Every rank starts the same collectives in the same order: the order is the schedule's, positions of a pass that this
// rank does not run are passed over.
#pragma once

#include <functional>
#include <vector>

#include "shard/pass_schedule.h"
#include "shard/unit_store.h"

namespace dmuon {

class Publisher {
 public:
  Publisher(ShardJob& job, UnitStore& store, const UseOrder& order);

  // Before units' masters change: waits for everything that still reads or moves their values.
  void before_update(int unit);
  // After they changed (the slot in compute dtype included).
  void publish(int unit);
  // Publishing of a whole model starts (values gathered ahead are dropped), and goes on as far as units are published:
  // what the next pass needs first is gathered at once.
  void begin_publish();
  void gather_published();
  void wait_all();

  // A pass over positions [0, end of forward or all): entered in ascending order, none left out.
  void begin_pass(bool with_backward);
  void enter(int position);      // waits, and binds the unit's parameters
  void pass_over(int position);  // enters its collectives only
  void leave(int position);
  void end_pass();

  // Full values in compute dtype of an entered unit.
  const Tensor& values(int unit) const;

 private:
  struct State {
    Event between_nodes;  // this shard's segment is complete
    Event published;      // of units whose values are always there
    Event gathered;       // latest gathering into a pool buffer
    Tensor pooled;        // the pool buffer with the unit's values, while it is valid
    bool published_now = false;
    bool bound = false;  // parameters are bound to a pool buffer
  };
  State& state(int unit) { return states_[static_cast<size_t>(unit)]; }
  void fill_until(int position);
  void gather(int position);
  void choose_forms();

  ShardJob& job_;
  UnitStore& store_;
  const UseOrder& order_;
  PassSchedule gathering_;  // values of stage 3 on the wire
  PassSchedule widening_;   // float32 copies of bfloat16 values, where the backend does not compute in those
  std::vector<Tensor> gather_pool_, widen_pool_;
  std::vector<State> states_;
  std::vector<GatherForm> forms_;  // per region
  int end_ = 0;                    // of the running pass
  int filled_ = 0;                 // positions before this one have been filled
};

}  // namespace dmuon
