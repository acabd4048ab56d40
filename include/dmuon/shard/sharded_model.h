// A model whose parameters live in unit buffers, cut into one slot per rank (design sections 2, 5, 6).
//
// The holder of a slot keeps the only float32 master and optimizer state in the job. A unit's gradients are reduced to
// their owners as soon as its last backward use is over, while earlier units still compute; the owner updates its slot and
// publishes it. Ranks form a grid replicas x shards: both directions run inside the shard group (a node) and in the column
// of equal shards (between nodes). With one rank the buffers are the slots and nothing moves.
//
// Order of calls in a step:
//   begin_step, { begin_micro_batch, forward and backward of the model, end_micro_batch } ..., finish_gradients, update
// Forward passes outside begin/end_micro_batch (evaluation, sampling) may run at any time between steps. Every rank makes
// the same calls in the same order, also when it has no samples: collectives follow a static order, that in which the
// model declares to use its units (Model::forward_order), and a rank that does not run a pass only enters them.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dmuon/comm/communicator.h"
#include "dmuon/comm/rank_grid.h"
#include "dmuon/nn/model.h"
#include "dmuon/optim/update_rule.h"
#include "dmuon/plan/plan.h"
#include "dmuon/shard/options.h"

namespace dmuon {

// Which rule updates which parameter (by index in the inventory); -1 for buffers and for what is frozen.
struct RuleTable {
  std::vector<std::unique_ptr<UpdateRule>> rules;
  std::vector<int> rule_of;
};

// Who holds what. Tensors whose rule agrees by mean are spread over all ranks; those whose rule agrees by vote are spread over
// the shards of one replica, in every replica alike. Each plan is made of the whole inventory, with PlanTensor::unit -1
// for the tensors of the other one.
struct JobPlans {
  Plan mean;                                            // over replicas * shards slots
  Plan vote;                                            // over `shards` slots, 1 replica; without units when no rule agrees by vote
  JobPlans(Plan mean_in) : mean(std::move(mean_in)) {}  // NOLINT(google-explicit-constructor): a job without votes
  JobPlans(Plan mean_in, Plan vote_in) : mean(std::move(mean_in)), vote(std::move(vote_in)) {}
};

// What this rank holds of one parameter: all of it, or a range of its elements. The pieces of all ranks cover the
// parameters that agree by mean exactly once, whatever the distribution; the pieces of each replica cover those that agree by
// vote exactly once: masters and global state of these are equal in all replicas, local state is each replica's own.
struct HeldPiece {
  Piece piece;
  int rule = -1;
  bool vote = false;          // of the vote plan
  Tensor master;              // float32, flat
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

// What a step's votes looked like: a sample of them, where the update was asked to observe. Equal on every rank, but for the
// seconds.
struct VoteReport {
  int64_t elements = 0;              // voted on in the step
  int64_t sampled = 0;               // of them, compared over all workers; without those that no worker has anything to say on
  int64_t tied = 0;                  // sampled ones that the tie-breaker decided
  int64_t agreeing = 0;              // bits of sampled elements, over all workers, that equal the vote
  int workers = 1;                   // that voted
  double operator_norm_ratio = 0.0;  // ||S||_op / (sqrt m + sqrt n) of the voted signs S of `matrix`, m x n; 0: no matrix
  double largest_change = 0.0;       // of an element of `matrix` in this update
  std::string matrix;                // drawn by the step's number
  int64_t bytes = 0;                 // that observing sent in this update; traffic() leaves them out
  std::string transport;             // of the votes, "" when nothing moves; known from the start, as the next
  std::string choice;                // of the transport and why, a line for people
  double observe_seconds = 0.0;      // that observing added to this rank's update
};

// Seconds the calling thread has waited for communication, by where it waited.
struct ExposedSeconds {
  double forward = 0.0, backward = 0.0, update = 0.0;
  double total() const { return forward + backward + update; }
};

class ShardedModel final : public UnitListener {
 public:
  // Collective: splits `world` into traffic classes and levels, and compares plan, options and orders over all ranks
  // (CommunicationError naming the first difference). ConfigError for options that do not fit job, plan or model.
  // Allocates everything that lives as long as the model; values are undefined until initialize or a load.
  // For Distribution::gather the plan is made with no tensor whole (equal flat shards); it has no votes.
  ShardedModel(Backend& backend, Communicator& world, Model& model, RuleTable rules, JobPlans plans, ShardedModelOptions options = {});
  ~ShardedModel() override;

  // Masters from the initializers, states zero; publishes.
  void initialize(uint64_t seed);
  // Masters from a source of values, which is asked for what this rank holds only, in pieces: elements [first, first + count) of
  // a parameter. Local: callers agree that it went well on every rank, then publish_all().
  using InitialValues = std::function<void(const ParameterDeclaration& parameter, int64_t first, int64_t count, float* out)>;
  void fill_masters(const InitialValues& values);

  // `micro_batches` of the step where known: gradients that are reduced once a step (stage 1) then leave during the last
  // backward, otherwise in finish_gradients. ConfigError from begin_micro_batch when there are more than announced.
  void begin_step(int64_t micro_batches = 0);
  void begin_micro_batch();
  void end_micro_batch();
  // This rank has nothing to run in one forward pass outside a step (evaluation, sampling) that other ranks run: it enters
  // the collectives of the pass. Every rank makes the same number of passes, run or skipped, in the same order.
  void skip_forward_pass();
  // Waits for the reductions, then agrees on norm, finiteness and the sums of `extras` (equal length on every rank).
  GradientReport finish_gradients(std::span<const double> extras);
  // values[rule] of this step, with the clip coefficient as gradient_scale (rules that agree by vote get it times the number of
  // replicas, since what a replica has of a gradient is its share of the mean). Updates window by window and publishes each window as soon
  // as it is done. Parameters of role buffer become their mean over the ranks. Returns what this rank's rules have counted in this update.
  // A message of a vote rule that holds NaN or Inf on any rank is a NumericalError naming its parameter, the same on every
  // rank, before any master has changed. `observe_votes`, the same on every rank: vote_report() tells of this update.
  UpdateCounters update(std::span<const StepValues> values, bool observe_votes = false);
  const VoteReport& vote_report() const;
  // After the held pieces were written (a load): everything that other ranks, or this rank's copies, have of them.
  // Collective, as update() is.
  void publish_all();
  // Blocks until everything published so far has arrived.
  void wait_for_parameters();

  // Calls `visit(unit)` for every unit that the model uses; inside, value() holds the unit's parameters. Collective: a
  // forward pass as far as other ranks are concerned.
  void for_each_unit(const std::function<void(int unit)>& visit);
  // Hash of every parameter as this rank computes with it. Equal on all ranks unless something is broken;
  // check_replicas throws CommunicationError naming the first unit and ranks that differ, and compares the plan's hash, too.
  // Both are collective.
  uint64_t parameter_hash();
  void check_replicas();

  std::span<HeldPiece> held();
  const Plan& plan() const;       // of what agrees by mean
  const Plan& vote_plan() const;  // of what agrees by vote; without units when nothing does
  const RuleTable& rules() const;
  const Inventory& inventory() const;
  const RankGrid& grid() const;
  const ShardedModelOptions& options() const;
  // The whole parameter as this rank computes with it. Undefined while its unit has no values here: at stage 3, and with a
  // compute_dtype that the backend does not compute in, outside the unit's scope and for_each_unit.
  Tensor value(int parameter) const;

  // Seconds a collective of the traffic classes may take from now on.
  void set_deadline(double seconds);

  // Seconds that computing has waited for communication, and bytes sent, since the start: the calling thread, or a device's
  // compute stream as far as the device has come (all of it once that was synchronized).
  double exposed_seconds() const { return exposed().total(); }
  const ExposedSeconds& exposed() const;
  TrafficBytes traffic() const;
  // The part of it that votes are, without what observing them took.
  TrafficBytes vote_traffic() const;
  int64_t bytes_sent() const { return traffic().inside + traffic().between; }

  void enter_forward(int unit) override;
  void leave_forward(int unit) override;
  void enter_backward(int unit) override;
  void leave_backward(int unit) override;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

}  // namespace dmuon
