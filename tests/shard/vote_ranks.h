// Jobs that agree by vote on ranks that are threads of one process: with injected gradients, and training a small GPT.
#pragma once

#include <mutex>

#include "comm/thread_ranks.h"
#include "models/gpt2.h"
#include "shard/delayed_communicator.h"
#include "shard/vote_job.h"
#include "support/catch.h"
#include "train/batches.h"

namespace dmuon::testing {

inline ThreadGroupOptions nodes_of(int ranks, int replicas, bool shared_memory = true) {
  ThreadGroupOptions group;
  group.ranks_per_node = ranks / replicas;
  group.shared_memory = shared_memory;
  return group;
}

// Runs a job on thread ranks; `look` at each rank's, in turn. Returns what each rank threw.
inline std::vector<std::string> run_jobs(int ranks, const VoteCase& c, const std::function<void(VoteJob&, int rank)>& look,
                                         uint64_t delay_seed = 0) {
  std::mutex one_at_a_time;
  return run_ranks(ranks, nodes_of(ranks, c.options.replicas), [&](Communicator& world) {
    DelayedCommunicator delayed(world, delay_seed);
    VoteJob job(delay_seed > 0 ? delayed : world, c);
    job.run();
    const uint64_t hash = job.hash();
    (void)hash;
    const std::lock_guard lock(one_at_a_time);
    look(job, world.rank());
  });
}

inline void require_none(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) REQUIRE(error == "");
}

// A small GPT that trains.
struct TrainRank {
  TrainRank(Communicator& world, const VoteCase& c, int64_t cut_elements = 64)
      : observe(c.observe), backend(make_cpu_backend({.mode = c.mode})), model([] {
          Gpt2Settings s;
          s.layers = 2;
          s.heads = 2;
          s.width = 16;
          s.context_length = 8;
          s.vocabulary_size = 32;
          return s;
        }()) {
    RuleTable table = make_vote_rules(model.inventory(), c);
    JobPlans plans = make_vote_plans(model.inventory(), table, c, world.size(), cut_elements);
    sharded = std::make_unique<ShardedModel>(*backend, world, model, std::move(table), std::move(plans), c.options);
    sharded->initialize(1);
  }
  // Every rank its own samples; the last one uses tokens that the others do not.
  GradientReport step(int rank, int64_t number, double scale, double clip, int64_t micro_batches = 1) {
    sharded->begin_step(micro_batches);
    for (int64_t k = 0; k < micro_batches; ++k) run_micro_batch(rank, number + 100 * k, scale);
    const GradientReport report = sharded->finish_gradients({});
    const double coefficient = clip > 0.0 ? clip_coefficient(report.norm, clip) : 1.0;
    const StepValues values[] = {{number, 0.01, coefficient}, {number, 0.001, coefficient}};
    calls += sharded->update(values, observe).newton_schulz_calls;
    return report;
  }
  void run_micro_batch(int rank, int64_t number, double scale) {
    sharded->begin_micro_batch();
    HostTokenBatch batch;
    batch.sequences = 1;
    batch.length = 8;
    for (int64_t t = 0; t < 8; ++t) {
      batch.tokens.push_back(static_cast<int32_t>((t * (3 + rank) + number * (rank + 1)) % 6 + 6 * rank));
      batch.targets.push_back(static_cast<int32_t>((t * 5 + rank * 7 + number) % 32));
    }
    batch.valid_targets = 8;
    StepClock clock;
    train_micro_batch(model, {*backend, backend->compute_stream()}, batch, scale * (1.0 + 10.0 * rank), clock);
    sharded->end_micro_batch();
  }

  bool observe = false;
  std::unique_ptr<Backend> backend;
  Gpt2 model;
  std::unique_ptr<ShardedModel> sharded;
  int64_t calls = 0;
};

// The hash of rank 0 after training.
inline uint64_t train(int ranks, const VoteCase& c, int64_t steps, double scale, bool shared_memory = true, int64_t micro_batches = 1,
                      uint64_t delay_seed = 0) {
  uint64_t hash = 0;
  require_none(run_ranks(ranks, nodes_of(ranks, c.options.replicas, shared_memory), [&](Communicator& ranks_world) {
    DelayedCommunicator delayed(ranks_world, delay_seed);
    Communicator& world = delay_seed > 0 ? delayed : ranks_world;
    TrainRank rank(world, c);
    for (int64_t step = 1; step <= steps; ++step) {
      rank.step(world.rank(), step, scale, c.clip, micro_batches);
      rank.sharded->check_replicas();
    }
    const uint64_t mine = rank.sharded->parameter_hash();
    if (world.rank() == 0) hash = mine;
  }));
  return hash;
}

inline VoteCase workers(int replicas, Kind others = Kind::mean) {
  VoteCase c;
  c.options.replicas = replicas;
  c.others = others;
  return c;
}

}  // namespace dmuon::testing
