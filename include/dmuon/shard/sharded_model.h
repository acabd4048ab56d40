// A model whose parameters live in unit buffers, cut into one slot per rank (design sections 2, 5, 6; stage 2).
//
// A unit's value buffer is whole on every rank; the part that is this rank's slot is the only master in the job. A
// unit's gradients are reduced to their owners as soon as its last backward use is over, while earlier units still
// compute; the owner updates its slot and publishes it. With one rank the buffers are the slots and nothing moves.
//
// Order of calls in a step:
//   begin_step, { begin_micro_batch, forward and backward of the model, end_micro_batch } ..., finish_gradients, update
// Forward passes outside begin/end_micro_batch (evaluation, sampling) only wait for published values. Every rank makes
// the same calls in the same order, also when it has no samples: collectives follow the plan's static order.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "dmuon/comm/communicator.h"
#include "dmuon/comm/rank_grid.h"
#include "dmuon/nn/model.h"
#include "dmuon/optim/update_rule.h"
#include "dmuon/plan/plan.h"
#include "dmuon/shard/options.h"

namespace dmuon {

// Which rule updates which parameter (by index in the inventory); -1 for buffers.
struct RuleTable {
  std::vector<std::unique_ptr<UpdateRule>> rules;
  std::vector<int> rule_of;
};

// What this rank holds of one parameter: all of it, or a range of its elements.
struct HeldPiece {
  Piece piece;
  int rule = -1;
  Tensor master;              // view of the value buffer, flat
  Tensor gradient;            // reduced gradient, flat
  std::vector<Tensor> state;  // flat, in the order of the rule's state()
};

// What all ranks agreed on about the step's gradients.
struct GradientReport {
  double norm = 0.0;  // of the whole job's gradient, before clipping
  bool finite = true;
  std::string first_non_finite;  // first parameter, by name, whose gradient holds NaN or Inf
  std::vector<double> sums;      // the extra values, added over ranks in rank order
};

// Seconds the calling thread has waited for communication, by where it waited.
struct ExposedSeconds {
  double forward = 0.0, backward = 0.0, update = 0.0;
  double total() const { return forward + backward + update; }
};

class ShardedModel final : public UnitListener {
 public:
  // Collective: splits `world` into traffic classes and compares the plan's hash over all ranks (CommunicationError).
  // Allocates value buffers (parameters), gradient slots and states; values are undefined until initialize or load.
  ShardedModel(Backend& backend, Communicator& world, Model& model, RuleTable rules, Plan plan, ShardedModelOptions options = {});
  ~ShardedModel() override;

  // Masters from the initializers, states zero; publishes.
  void initialize(uint64_t seed);

  // `micro_batches` of the step where known: stage 1 then reduces during the last one's backward, otherwise at the end.
  void begin_step(int64_t micro_batches = 0);
  void begin_micro_batch();
  void end_micro_batch();
  // This rank has nothing to run in one forward pass outside a step (evaluation, sampling) that other ranks run: it enters
  // the collectives of the pass. Every rank makes the same number of passes, run or skipped, in the same order.
  void skip_forward_pass();
  // Waits for the reductions, then agrees on norm, finiteness and the sums of `extras` (equal length on every rank).
  GradientReport finish_gradients(std::span<const double> extras);
  // values[rule] of this step. Updates the slots window by window and publishes each window as soon as it is done.
  // Returns what this rank's rules have counted in this update.
  UpdateCounters update(std::span<const StepValues> values);
  // Publishes every unit from its owners (after a load).
  void publish_all();
  // Blocks until every published value has arrived.
  void wait_for_parameters();

  // Hash of every parameter as this rank computes with it. Equal on all ranks unless something is broken;
  // check_replicas is collective and throws CommunicationError naming the first unit and ranks that differ.
  uint64_t parameter_hash();
  void check_replicas();  // compares the plan's hash, too

  std::span<HeldPiece> held() { return held_; }
  const Plan& plan() const { return plan_; }
  const RuleTable& rules() const { return rules_; }
  const Inventory& inventory() const { return model_.inventory(); }
  // The whole parameter as this rank computes with it.
  Tensor value(int parameter) const;

  // Seconds a collective of the traffic classes may take from now on.
  void set_deadline(double seconds);

  // Seconds the calling thread has waited for communication, and bytes sent, since the start.
  double exposed_seconds() const { return exposed_.total(); }
  const ExposedSeconds& exposed() const { return exposed_; }
  int64_t bytes_sent() const;

  void enter_forward(int unit) override;
  void leave_forward(int unit) override;
  void enter_backward(int unit) override;
  void leave_backward(int unit) override;

 private:
  struct Unit {
    Tensor values;         // [elements], full
    Tensor slot_gradient;  // reduced gradient of this rank's slot
    Tensor full_gradient;  // while the unit's backward runs; with one rank always slot_gradient
    Event published;
    int uses = 0;        // open uses of this micro-batch
    bool ready = false;  // last backward use is over
    bool reduced = false;
  };

  bool alone() const { return world_.size() == 1; }
  void build_unit(int index);
  void open_gradient(int index);
  void complete_gradient(int index);
  void dispatch_ready();
  void reduce(int index);
  void publish(int index);
  void wait(const Event& event, double& seconds);
  void wait(const Event& event) { wait(event, *phase_); }

  Backend& backend_;
  Communicator& world_;
  Model& model_;
  RuleTable rules_;
  Plan plan_;
  ShardedModelOptions options_;
  RankGrid grid_;  // one replica so far
  int slot_ = 0;   // of this rank
  std::unique_ptr<Communicator> gradient_group_, parameter_group_;
  std::unique_ptr<Stream> gradient_stream_, parameter_stream_;
  std::vector<Unit> units_;
  std::vector<HeldPiece> held_;
  std::vector<int64_t> norm_offsets_;  // per held piece: its first chunk in the job's vector of partial sums
  std::vector<int> name_order_;        // parameters with a rule, by name
  std::vector<int64_t> first_chunk_;   // per entry of name_order_
  int64_t chunks_ = 0;
  Tensor partials_;
  std::deque<Event> outstanding_;
  bool in_micro_batch_ = false;
  int backward_depth_ = 0;
  int micro_batches_ = 0;
  int next_reduce_ = 0;  // units are reduced in descending index
  ExposedSeconds exposed_;
  double* phase_ = &exposed_.update;  // where waiting is counted now
};

}  // namespace dmuon
