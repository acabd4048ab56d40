// Jobs that agree by vote, on ranks that are threads of one process: what the hybrid shares and what it equals, training on
// very different data, messages that are not finite, replicas that differ, and what is refused.
#include <atomic>
#include <mutex>

#include "comm/thread_ranks.h"
#include "models/gpt2.h"
#include "shard/delayed_communicator.h"
#include "shard/vote_job.h"
#include "support/catch.h"
#include "train/batches.h"

using namespace dmuon;
using namespace dmuon::testing;

namespace {

ThreadGroupOptions nodes_of(int ranks, int replicas, bool shared_memory = true) {
  ThreadGroupOptions group;
  group.ranks_per_node = ranks / replicas;
  group.shared_memory = shared_memory;
  return group;
}

// Runs a job on thread ranks; `look` at each rank's, in turn. Returns what each rank threw.
std::vector<std::string> run_jobs(int ranks, const VoteCase& c, const std::function<void(VoteJob&, int rank)>& look,
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

void require_none(const std::vector<std::string>& errors) {
  for (const std::string& error : errors) REQUIRE(error == "");
}

// A small GPT that trains.
struct TrainRank {
  TrainRank(Communicator& world, const VoteCase& c, int64_t cut_elements = 64)
      : backend(make_cpu_backend({.mode = c.mode})), model([] {
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
  GradientReport step(int rank, int64_t number, double scale, double clip, bool observe = false) {
    sharded->begin_step(1);
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
    const GradientReport report = sharded->finish_gradients({});
    const double coefficient = clip > 0.0 ? clip_coefficient(report.norm, clip) : 1.0;
    const StepValues values[] = {{number, 0.01, coefficient}, {number, 0.001, coefficient}};
    calls += sharded->update(values, observe).newton_schulz_calls;
    return report;
  }

  std::unique_ptr<Backend> backend;
  Gpt2 model;
  std::unique_ptr<ShardedModel> sharded;
  int64_t calls = 0;
};

// The hash of rank 0 after training.
uint64_t train(int ranks, const VoteCase& c, int64_t steps, double scale, bool shared_memory = true) {
  uint64_t hash = 0;
  require_none(run_ranks(ranks, nodes_of(ranks, c.options.replicas, shared_memory), [&](Communicator& world) {
    TrainRank rank(world, c);
    for (int64_t step = 1; step <= steps; ++step) {
      rank.step(world.rank(), step, scale, c.clip);
      rank.sharded->check_replicas();
    }
    const uint64_t mine = rank.sharded->parameter_hash();
    if (world.rank() == 0) hash = mine;
  }));
  return hash;
}

VoteCase workers(int replicas, Kind others = Kind::mean) {
  VoteCase c;
  c.options.replicas = replicas;
  c.others = others;
  return c;
}

}  // namespace

TEST_CASE("two nodes of two ranks vote as two workers do, with half the work and state on each rank") {
  for (Kind others : {Kind::mean, Kind::signum}) {
    std::map<std::string, std::vector<float>> pure;
    require_none(run_jobs(2, workers(2, others), [&](VoteJob& job, int) {
      for (const ParameterDeclaration& parameter : job.sharded().inventory().parameters())
        pure[parameter.name] = job.values(parameter.name);
    }));
    for (int stage : {1, 2, 3})
      for (bool overlap : {true, false}) {
        VoteCase c = workers(2, others);
        c.options.stage = stage;
        c.options.overlap = overlap;
        INFO("stage " << stage << ", overlap " << overlap);
        require_none(run_jobs(4, c, [&](VoteJob& job, int) {
          for (const auto& [name, values] : pure) {
            INFO(name);
            CHECK(std::memcmp(values.data(), job.values(name).data(), values.size() * sizeof(float)) == 0);
          }
        }));
      }
  }
  // Equal layers, so that the halves are exact.
  std::atomic<int64_t> pure_calls = 0, pure_state = 0;
  const auto state_of = [](ShardedModel& model) {
    int64_t bytes = 0;
    for (const HeldPiece& held : model.held())
      if (held.vote)
        for (const Tensor& state : held.state) bytes += state.bytes();
    return bytes;
  };
  require_none(run_ranks(2, nodes_of(2, 2), [&](Communicator& world) {
    TrainRank rank(world, workers(2));
    rank.step(world.rank(), 1, 0.1, 0.0);
    pure_calls = rank.calls;
    pure_state = state_of(*rank.sharded);
  }));
  CHECK(pure_calls == 12);
  require_none(run_ranks(4, nodes_of(4, 2), [&](Communicator& world) {
    TrainRank rank(world, workers(2));
    rank.step(world.rank(), 1, 0.1, 0.0);
    if (rank.calls * 2 != pure_calls) throw ShapeError(text(rank.calls, " of ", pure_calls.load(), " calls"));
    if (state_of(*rank.sharded) * 2 != pure_state) throw ShapeError(text(state_of(*rank.sharded), " of ", pure_state.load(), " bytes"));
  }));
}

TEST_CASE("what crosses between nodes is one bit an element each way") {
  for (int ranks : {2, 4})
    for (bool overlap : {true, false}) {
      VoteCase c = workers(2, Kind::signum);
      c.matrices = Kind::signum;
      c.options.overlap = overlap;
      c.options.vote_transport = VoteTransportKind::packed_gather;
      std::atomic<int64_t> sent = 0, between = 0, bits = 0, headers = 0;
      require_none(run_ranks(ranks, nodes_of(ranks, 2), [&](Communicator& world) {
        TrainRank rank(world, c);
        const int64_t before = rank.sharded->traffic().between, votes_before = rank.sharded->vote_traffic().between;
        rank.step(world.rank(), 1, 0.1, 0.0);
        rank.sharded->wait_for_parameters();
        if (world.rank() >= world.size() / 2) return;  // one node's
        sent += rank.sharded->vote_traffic().between - votes_before;
        between += rank.sharded->traffic().between - before;
        for (const HeldPiece& held : rank.sharded->held()) {
          if (!held.vote) throw ShapeError("everything is voted on");
          const Shape& shape = rank.model.inventory().parameters()[static_cast<size_t>(held.piece.tensor)].shape;
          const int64_t columns = shape.elements() / (shape.rank() > 1 ? shape[0] : 1);
          int64_t segments = 0;
          for (int64_t i = 0; i < held.piece.count; ++i) {
            const int64_t element = held.piece.first + i;
            segments += i == 0 || element % columns == 0 || element % 64 == 0;
          }
          bits += (held.piece.count + 63) / 64 * 64;
          headers += (segments + 1 + 63) / 64 * 64;
        }
      }));
      CHECK(sent * 8 == bits + headers);
      // Beside them only the partial sums of the norm.
      CHECK(between - sent < 4 * bits);
    }
}

TEST_CASE("votes beside averaged tensors and clipping keep replicas equal on very different data") {
  for (const auto& [ranks, replicas] : {std::pair(4, 4), std::pair(4, 2), std::pair(3, 3)}) {
    VoteCase c = workers(replicas);
    c.clip = 1.0;
    INFO(ranks << " ranks, " << replicas << " workers");
    CHECK(train(ranks, c, 50, 0.1) != 0);
    c.post_polar = true;
    CHECK(train(ranks, c, 5, 0.1) != 0);
  }
}

TEST_CASE("transports, stages, overlap and narrow values leave the same bits when a model trains") {
  for (DType dtype : {DType::float32, DType::bfloat16})
    for (int replicas : {2, 4}) {
      VoteCase c = workers(replicas, Kind::signum);
      c.options.compute_dtype = dtype;
      const uint64_t expected = train(4, c, 4, 0.1);
      for (VoteTransportKind kind : {VoteTransportKind::int8_sum, VoteTransportKind::packed_gather, VoteTransportKind::packed_scatter})
        for (bool overlap : {true, false}) {
          INFO(name_of(dtype) << ", " << replicas << " workers, " << name_of(kind) << ", overlap " << overlap);
          c.options.vote_transport = kind;
          c.options.overlap = overlap;
          c.options.stage = overlap ? 1 : replicas == 2 ? 3 : 2;
          CHECK(train(4, c, 4, 0.1, overlap) == expected);
        }
    }
}

TEST_CASE("a loss times a power of two gives the same trajectory when everything votes and nothing clips") {
  VoteCase c = workers(2, Kind::signum);
  c.clip = 0.0;
  const uint64_t expected = train(4, c, 6, 0.1);
  CHECK(train(4, c, 6, 0.1 * 1024.0) == expected);
  CHECK(train(4, c, 6, 0.1 / 4096.0) == expected);
  CHECK(train(4, c, 6, 0.11) != expected);
}

TEST_CASE("collectives that start late change no votes") {
  VoteCase c = workers(2, Kind::signum);
  uint64_t expected = 0;
  require_none(run_jobs(4, c, [&](VoteJob& job, int rank) {
    if (rank == 0) expected = hash_name(text(job.values("blocks.1.a")[7], job.values("head.weight")[9]));
  }));
  for (uint64_t seed : {1, 2})
    require_none(run_jobs(
        4, c, [&](VoteJob& job, int) { CHECK(hash_name(text(job.values("blocks.1.a")[7], job.values("head.weight")[9])) == expected); },
        seed));
}

TEST_CASE("rows that no worker uses only decay") {
  VoteCase c = workers(2, Kind::signum);
  c.steps = 3;  // signs of an odd number of steps do not cancel
  require_none(run_jobs(4, c, [&](VoteJob& job, int) {
    VoteCase none = c;
    none.steps = 0;
    none.options.replicas = 1;
    const auto self = make_self_communicator();
    VoteJob start(*self, none);
    const std::vector<float>&before = start.values("embedding.weight"), &after = job.values("embedding.weight");
    for (size_t i = 0; i < before.size(); ++i) {
      const bool unused = i / 12 % 5 == 2;
      const double decayed = before[i] * std::pow(1.0 - 0.02 * 0.1, 3);
      CHECK((std::abs(after[i] - decayed) < 1e-6) == unused);
    }
  }));
}

TEST_CASE("a message that is not finite on one worker is the same error on all, before any master changes") {
  for (const auto& [ranks, replicas] : {std::pair(1, 1), std::pair(3, 3), std::pair(4, 2)}) {
    VoteCase c = workers(replicas, Kind::mean);
    c.matrices = Kind::signum;
    c.momentum_form = MomentumForm::sum;
    c.clip = 0.0;
    c.gradient_scale = 64.0;
    c.spike = 1e37;  // finite, but not times 64
    std::mutex lock;
    std::vector<std::string> texts;
    require_none(run_ranks(ranks, nodes_of(ranks, replicas), [&](Communicator& world) {
      VoteJob job(world, c);
      job.run_step(1);
      std::vector<std::vector<float>> before;
      for (HeldPiece& held : job.sharded().held()) before.push_back(job.read(held.master));
      std::string found;
      try {
        job.run_step(2);
      } catch (const NumericalError& error) {
        found = error.what();
      }
      for (size_t i = 0; i < before.size(); ++i)
        if (job.read(job.sharded().held()[i].master) != before[i]) found += " A master changed";
      const std::lock_guard guard(lock);
      texts.push_back(found);
    }));
    for (const std::string& found : texts) {
      CHECK_THAT(found, Catch::Contains("blocks.0.b"));
      CHECK(found == texts[0]);
      CHECK_THAT(found, !Catch::Contains("changed; resume A") && !Catch::Contains("A master changed"));
    }
  }
}

TEST_CASE("masters of replicas are compared, not only what travels rounded") {
  VoteCase c = workers(2);
  c.options.compute_dtype = DType::bfloat16;
  const auto errors = run_ranks(4, nodes_of(4, 2), [&](Communicator& world) {
    VoteJob job(world, c);
    job.run_step(1);
    job.finish();
    if (world.rank() == 3)
      for (HeldPiece& held : job.sharded().held()) {
        if (!held.vote) continue;
        std::vector<float> one = job.read(held.master.flat(0, 1));
        one[0] = std::nextafter(one[0], 1.0f);
        job.backend().copy_from_host(job.backend().compute_stream(), one.data(), held.master.flat(0, 1));
        break;
      }
    job.sharded().check_replicas();
  });
  for (const std::string& error : errors) {
    CHECK_THAT(error, Catch::Contains("masters that replicas vote on differ"));
    CHECK_THAT(error, Catch::Contains("rank 3"));
  }
}

TEST_CASE("an observed update tells of ties, agreement, norm and step") {
  for (const auto& [ranks, replicas] : {std::pair(1, 1), std::pair(3, 3), std::pair(4, 4), std::pair(4, 2)}) {
    VoteCase c = workers(replicas, Kind::signum);
    c.observe = true;
    std::mutex lock;
    std::vector<VoteReport> reports;
    uint64_t observed = 0, silent = 0;
    require_none(run_jobs(ranks, c, [&](VoteJob& job, int) {
      reports.push_back(job.sharded().vote_report());
      observed = hash_name(text(job.values("blocks.1.a")[3]));
    }));
    c.observe = false;
    require_none(run_jobs(ranks, c, [&](VoteJob& job, int) { silent = hash_name(text(job.values("blocks.1.a")[3])); }));
    CHECK(observed == silent);
    for (const VoteReport& report : reports) {
      INFO(ranks << " ranks, " << replicas << " workers");
      CHECK(report.elements == 37 * 12 + 3 * 240 + 2 * 231 + 70 + 9 + 5 + 40 * 33);
      CHECK(report.workers == replicas);
      CHECK(report.sampled == report.elements);  // fewer than a sample
      CHECK(report.tied == reports[0].tied);
      CHECK(report.agreeing == reports[0].agreeing);
      CHECK(report.matrix == reports[0].matrix);
      if (replicas % 2 == 1) CHECK(report.tied == 0);
      if (replicas == 1) CHECK(report.agreeing == report.sampled);
      if (replicas == 2) {
        CHECK(report.tied > report.sampled / 4);
        CHECK(report.agreeing == 2 * report.sampled - report.tied);
      }
      CHECK(report.operator_norm_ratio > 0.3);
      CHECK(report.operator_norm_ratio < 2.0);
      CHECK(report.largest_change > 0.0199);
      CHECK(report.largest_change < 0.0205);
      CHECK(report.transport.empty() == (replicas == 1));
    }
  }
}

TEST_CASE("what votes cannot have is refused by name") {
  const auto refusal = [](VoteCase c, int ranks, const std::function<void(JobPlans&)>& change = nullptr) {
    const auto errors = run_ranks(ranks, nodes_of(ranks, c.options.replicas), [&](Communicator& world) {
      const auto backend = make_cpu_backend({});
      VoteModel model;
      RuleTable table = make_vote_rules(model.inventory(), c);
      JobPlans plans = make_vote_plans(model.inventory(), table, c, world.size());
      if (change) change(plans);
      ShardedModel sharded(*backend, world, model, std::move(table), std::move(plans), c.options);
    });
    for (const std::string& error : errors) CHECK(error == errors[0]);
    return errors[0];
  };
  using Catch::Contains;
  VoteCase c = workers(2);
  CHECK(refusal(c, 2) == "");
  c.options.stage = 3;
  CHECK(refusal(c, 4) == "");
  CHECK_THAT(refusal(c, 2), Contains("distribution.stage 3") && Contains("choose stage 1 or 2"));
  c = workers(1);
  for (Distribution distribution : {Distribution::gather, Distribution::replicated}) {
    c.options.distribution = distribution;
    CHECK_THAT(refusal(c, 2),
               Contains(text("distribution.method ", name_of(distribution))) && Contains("choose distribution.method owner"));
  }
  c = workers(2);
  CHECK_THAT(refusal(c, 2, [](JobPlans& plans) { plans.vote = Plan(); }),
             Contains("blocks.0.a has rule sign_muon, which agrees by vote, but does not lie in the plan of votes"));
  CHECK_THAT(refusal(c, 2, [](JobPlans& plans) { std::swap(plans.mean.units[0], plans.vote.units[0]); }), Contains("plan of votes"));
  CHECK_THAT(refusal(c, 2, [](JobPlans& plans) { plans.vote.slots = 2; }), Contains("2 slots in 1 replicas"));
  CHECK_THAT(refusal(c, 2, [](JobPlans& plans) { plans.vote.cut_elements = 64; }), Contains("differ in units, windows or cut_elements"));
}

TEST_CASE("a pass without memory predicts what votes take") {
  for (DType dtype : {DType::float32, DType::bfloat16})
    for (Kind others : {Kind::mean, Kind::signum}) {
      VoteCase c = workers(1, others);
      c.options.compute_dtype = dtype;
      const auto self = make_self_communicator();
      MemoryStatistics predicted, real;
      {
        VoteCase dry = c;
        dry.mode = HostMode::shape_only;
        TrainRank rank(*self, dry);
        for (int64_t step = 1; step <= 2; ++step) rank.step(0, step, 0.1, 0.0);
        predicted = rank.backend->allocator().statistics();
      }
      {
        TrainRank rank(*self, c);
        for (int64_t step = 1; step <= 2; ++step) rank.step(0, step, 0.1, 0.0);
        real = rank.backend->allocator().statistics();
      }
      for (MemoryCategory category : {MemoryCategory::parameters, MemoryCategory::gradients, MemoryCategory::optimizer_state}) {
        INFO(name_of(category));
        CHECK(predicted[category].current >= real[category].current);
        CHECK(static_cast<double>(predicted[category].current) <= 1.13 * static_cast<double>(real[category].current));
      }
      CHECK(real[MemoryCategory::communication].current > 0);
    }
}
