// The part of an update that is agreed by vote: local halves of the rules, their messages as signs, the majority among the
// workers, and the check that every message was finite. Workers are the replicas; the ranks of one shard vote on its pieces.
//
// With overlap, the signs of one ballot, some windows of units, travel while the local halves of the next compute; without, all
// travel at once.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "shard/unit_store.h"
#include "shard/update_call.h"
#include "shard/vote_observer.h"

namespace dmuon {

class VoteStep {
 public:
  // `windows`: the calls of each window, those of other rules are left alone. Collective.
  VoteStep(ShardJob& job, UnitStore& store, std::vector<std::vector<UpdateCall>> windows);

  bool any() const { return any_; }  // does any rank of the job vote on anything
  // After prepare() of the rules: everything up to the agreed signs. Collective, blocks. NumericalError naming the first
  // parameter whose message is not finite on any worker; masters have not changed then, but local state (momenta) and the reduced
  // gradients are already those of the failed step: it cannot be repeated, only resumed from a checkpoint. With `observe` the same on every
  // rank, observed() tells of this update once finish() was called after it.
  void run(std::span<const StepValues> values, bool observe);
  void finish(bool observe) {
    if (observe) observer_.finish();
  }
  const VoteReport& observed() const { return observer_.report(); }
  // Bytes that only observing took.
  const TrafficBytes& observing() const { return observer_.sent(); }
  // What was agreed on for a target of UnitStore; undefined for those of other rules.
  const SignVote& vote_of(size_t target) const { return votes_[target]; }

 private:
  // What travels together: [headers of all pieces | signs of all pieces].
  struct Ballot {
    std::vector<UpdateCall> calls;
    std::vector<size_t> targets;
    Tensor words;
    int64_t header_words = 0;
    Event counted;
  };
  bool large_enough(const Ballot& ballot) const;
  void add_to_ballots(std::vector<UpdateCall> window);
  void join_last_ballot();
  void lay_out(Ballot& ballot, size_t number);
  void pack(const Ballot& ballot, std::span<const StepValues> values);
  void require_finite();

  ShardJob& job_;
  UnitStore& store_;
  std::vector<Ballot> ballots_;
  std::vector<SignVote> votes_;  // by target
  VoteObserver observer_;
  Tensor first_bad_;                 // int64 [1]
  std::vector<int64_t> name_place_;  // by parameter: its place in the order of names
  int rule_ = -1;                    // whose step breaks ties
  bool any_ = false;
};

}  // namespace dmuon
