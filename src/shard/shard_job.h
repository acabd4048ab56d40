// What the parts of a sharded model share: backend, model, plan, the grid of ranks, and the two network levels that each
// traffic class (gradients, parameters, votes) runs on.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "dmuon/backend/device_clock.h"
#include "dmuon/comm/communicator.h"
#include "dmuon/comm/rank_grid.h"
#include "dmuon/comm/vote.h"
#include "dmuon/nn/model.h"
#include "dmuon/optim/update_rule.h"
#include "dmuon/plan/plan.h"
#include "dmuon/shard/sharded_model.h"
#include "shard/regions.h"

namespace dmuon {

// The collective that a stream is running, for messages: what fails stays, since later work is dropped.
class RunningCollective {
 public:
  void set(std::string what) {
    const std::lock_guard lock(mutex_);
    what_ = std::move(what);
  }
  std::string get() const {
    const std::lock_guard lock(mutex_);
    return what_;
  }

 private:
  mutable std::mutex mutex_;
  std::string what_;
};

// A group of ranks and the stream its collectives run on. No group: one rank, nothing moves.
struct Level {
  std::unique_ptr<Communicator> group;
  std::shared_ptr<Stream> stream;
  std::string name;  // "gradients in the node"
  std::shared_ptr<RunningCollective> running = std::make_shared<RunningCollective>();
  explicit operator bool() const { return group != nullptr; }
};

// The shard group of a replica (a node), and the column of equal shards (between nodes).
struct Levels {
  Level shard, column;
};

struct ShardJob {
  Backend& backend;
  Communicator& world;
  Model& model;
  RuleTable rules;
  Plan plan, vote_plan;
  ShardedModelOptions options;
  RankGrid grid;
  int shard = 0, replica = 0, slot = 0;           // of this rank
  std::vector<UnitBuffer> buffers;                // by unit
  Levels gradients, parameters, votes;            // votes: where rules agree by vote; column: the workers that vote on the same pieces
  std::unique_ptr<VoteTransport> vote_transport;  // on votes.column; made by the vote step, lives as long as the streams' work
  std::unique_ptr<Communicator> agreement;        // all ranks, on the stream of `gradients`; null where a level has them all
  ExposedSeconds exposed;
  double* phase = nullptr;  // where waiting is counted now
  // Of the compute stream where that is a device's: it waits by itself, and tells later how long it did.
  DeviceClock* clock = nullptr;
  struct TimedWait {
    Event before, after;
    double* phase;
  };
  std::deque<TimedWait> timed_waits;  // not counted yet, in the order of the stream

  // Every level there is, for what concerns all of them.
  std::vector<Level*> levels();
  std::vector<const Level*> levels() const;

  // Collective. ConfigError for options that do not fit the job.
  ShardJob(Backend& backend, Communicator& world, Model& model, RuleTable rules, JobPlans plans, ShardedModelOptions options);
  ~ShardJob();
  ShardJob(const ShardJob&) = delete;
  ShardJob& operator=(const ShardJob&) = delete;

  bool alone() const { return world.size() == 1; }
  // Values are published in a dtype that the backend does not compute in: units compute with float32 copies of them.
  bool widens() const { return !backend.computes_in(options.compute_dtype); }
  bool owned() const { return options.distribution == Distribution::owner; }
  bool replicated() const { return options.distribution == Distribution::replicated; }
  int units() const { return static_cast<int>(plan.units.size()); }
  const Inventory& inventory() const { return model.inventory(); }
  const ParameterDeclaration& parameter(int index) const { return inventory().parameters()[static_cast<size_t>(index)]; }
  const UnitBuffer& layout(int unit) const { return buffers[static_cast<size_t>(unit)]; }
  const std::vector<Region>& regions(int unit) const { return layout(unit).regions; }
  int region_count() const { return buffers.empty() ? 0 : buffers.back().regions.back().index + 1; }
  const Plan& plan_of(const Region& region) const { return region.vote ? vote_plan : plan; }
  int slot_in_plan(const Region& region) const { return region.vote ? shard : slot; }
  int workers() const { return grid.replicas; }  // that vote
  const std::string& unit_name(int unit) const { return inventory().units()[static_cast<size_t>(unit)].name; }
  int rule_of(int parameter) const { return rules.rule_of[static_cast<size_t>(parameter)]; }
  bool is_buffer(int index) const { return parameter(index).role == ParameterRole::buffer; }
  bool votes_on(int parameter) const;
  // The rule needs this tensor in one piece.
  bool whole(int parameter) const;
  // 1, 2 or 3, as far as it makes a difference in this job.
  int stage(int unit) const;

  // Memory that the shard group reaches in place where it can; all ranks ask in the same order.
  Tensor allocate_shared(Levels& levels, int64_t elements, DType dtype, MemoryCategory category, const std::string& name);
  Tensor allocate(int64_t elements, DType dtype, MemoryCategory category, const std::string& name);

  // Submits a collective on the level's stream, after `ready`, between the marks of a trace span; returns its end. With
  // overlap off it is waited for at once.
  Event start(Level& level, const Event& ready, const std::string& operation, int unit, int64_t bytes,
              const std::function<void(Communicator&, Stream&)>& submit);
  // Blocks the compute stream until the event and counts its waiting under `phase`; `what` and `unit` for the trace. On a host
  // the caller waits; on a device only the stream does.
  // A CommunicationError gets the collectives that are under way, with their units, added to its text.
  void wait(const Event& event, const char* what, int unit = -1);
  // Counts the waits that the device has come through by now; those are all after the compute stream was synchronized.
  void count_timed_waits();
  void set_deadline(double seconds);
  TrafficBytes traffic() const;
  TrafficBytes vote_traffic() const;  // the part of it that votes are
  void wait_on_device(const Event& event, const char* what, int unit);
  // Gathers a region from its slots over both levels of the parameter class; waits. For loads.
  void complete(const Tensor& data, const Region& region);
  // Adds `data` over all ranks, in rank order; waits.
  void add_over_ranks(const Tensor& data, const char* what, int unit = -1);
};

}  // namespace dmuon
