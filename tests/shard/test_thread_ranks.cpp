// Sharded training on ranks that are threads of one process: for the thread sanitizer, and for failures, which leave the
// communicators of a real job unusable.
#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "comm/thread_ranks.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/muon.h"
#include "dmuon/shard/sharded_model.h"
#include "models/gpt2.h"
#include "shard/delayed_communicator.h"
#include "support/catch.h"
#include "train/batches.h"

using namespace dmuon;

namespace {

Gpt2Settings settings() {
  Gpt2Settings s;
  s.layers = 2;
  s.heads = 2;
  s.width = 16;
  s.context_length = 8;
  s.vocabulary_size = 32;
  return s;
}

// One rank's part of a job.
struct Rank {
  explicit Rank(Communicator& world, const ShardedModelOptions& options) : backend(make_cpu_backend({})), model(settings()) {
    RuleTable table;
    table.rules.push_back(make_muon(muon_options("keller")));
    table.rules.push_back(make_adamw({}));
    std::vector<PlanTensor> tensors;
    for (const ParameterDeclaration& parameter : model.inventory().parameters()) {
      const bool matrix = parameter.role == ParameterRole::matrix;
      table.rule_of.push_back(matrix ? 0 : 1);
      PlanTensor tensor;
      tensor.name = parameter.name;
      tensor.shape = parameter.shape;
      tensor.unit = parameter.unit;
      tensor.whole = matrix;
      tensor.rule = matrix ? 0 : 1;
      if (matrix) tensor.cost = table.rules[0]->flops(parameter.shape);
      tensors.push_back(tensor);
    }
    PlanOptions plan;
    plan.slots = world.size();
    plan.replicas = options.replicas;
    plan.cut_elements = 64;
    sharded = std::make_unique<ShardedModel>(*backend, world, model, std::move(table),
                                             make_plan(tensors, static_cast<int>(model.inventory().units().size()), plan), options);
    sharded->initialize(1);
  }

  void step(Communicator& world, int64_t number) {
    sharded->begin_step(1);
    sharded->begin_micro_batch();
    HostTokenBatch batch;
    batch.sequences = 1;
    batch.length = 8;
    for (int32_t t = 0; t < 8; ++t) {
      batch.tokens.push_back((t * 5 + world.rank()) % 32);
      batch.targets.push_back((t * 5 + 5 + world.rank()) % 32);
    }
    batch.valid_targets = 8;
    StepClock clock;
    // The last rank has no samples.
    if (world.rank() + 1 < world.size() || world.size() == 1)
      train_micro_batch(model, {*backend, backend->compute_stream()}, batch, 0.1, clock);
    sharded->end_micro_batch();
    sharded->finish_gradients({});
    const StepValues values[] = {{number, 0.01, 1.0}, {number, 0.001, 1.0}};
    sharded->update(values);
  }

  std::unique_ptr<Backend> backend;
  Gpt2 model;
  std::unique_ptr<ShardedModel> sharded;
};

// Parameter hash of rank 0 after three steps of four thread ranks; empty when a rank failed. With a seed, collectives start
// late by random times.
std::string train(const ShardedModelOptions& options, bool shared_memory, uint64_t delay_seed = 0) {
  std::string result;
  ThreadGroupOptions group;
  group.ranks_per_node = 4 / options.replicas;
  group.shared_memory = shared_memory;
  for (const std::string& error : testing::run_ranks(4, group, [&](Communicator& ranks) {
         testing::DelayedCommunicator delayed(ranks, delay_seed);
         Communicator& world = delay_seed > 0 ? delayed : ranks;
         Rank rank(world, options);
         for (int64_t step = 1; step <= 3; ++step) rank.step(world, step);
         rank.sharded->check_replicas();
         const uint64_t hash = rank.sharded->parameter_hash();
         if (world.rank() == 0) result = text(hash);
       }))
    CHECK(error == "");
  return result;
}

}  // namespace

TEST_CASE("stages, transports and overlap leave the same bits on thread ranks") {
  for (int replicas : {1, 2, 4}) {
    ShardedModelOptions options;
    options.replicas = replicas;
    const std::string expected = train(options, false);
    CHECK_FALSE(expected.empty());
    for (int stage : {1, 3})
      for (bool shared_memory : {false, true}) {
        INFO(replicas << " replicas, stage " << stage << ", shared memory " << shared_memory);
        options.stage = stage;
        options.overlap = shared_memory;
        CHECK(train(options, shared_memory) == expected);
      }
  }
}

TEST_CASE("collectives that start late change nothing, because everything waits for what it needs") {
  for (int replicas : {1, 2, 4})
    for (int stage : {2, 3})
      for (DType dtype : {DType::float32, DType::bfloat16}) {
        ShardedModelOptions options;
        options.replicas = replicas;
        options.stage = stage;
        options.compute_dtype = options.gradient_dtype = dtype;
        const std::string expected = train(options, true);
        CHECK_FALSE(expected.empty());
        for (uint64_t seed : {1, 2}) {
          INFO(replicas << " replicas, stage " << stage << ", " << name_of(dtype) << ", delays " << seed);
          CHECK(train(options, true, seed) == expected);
          CHECK(train(options, false, seed) == expected);
        }
      }
}

TEST_CASE("a rank that does not arrive is named with the unit whose collective waits") {
  ThreadGroupOptions group;
  group.deadline_seconds = 1.0;
  std::atomic<bool> over = false;
  const auto errors = testing::run_ranks(2, group, [&](Communicator& world) {
    Rank rank(world, {});
    rank.sharded->wait_for_parameters();
    if (world.rank() == 1) {  // stays, but does nothing any more
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    try {
      rank.step(world, 1);
    } catch (...) {
      over = true;
      throw;
    }
    over = true;
  });
  CHECK_THAT(errors[0], Catch::Contains("reduce_scatter_v"));
  CHECK_THAT(errors[0], Catch::Contains("waiting for rank 1"));
  CHECK_THAT(errors[0], Catch::Contains("under way: \"reduce head\" of gradients in the node"));
}
