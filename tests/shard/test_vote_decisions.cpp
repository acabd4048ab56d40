// What ranks that vote decide together or refuse: messages that are not finite, replicas that differ, reports of votes,
// options that votes cannot have, memory.
#include <atomic>

#include "dmuon/core/trace.h"
#include "shard/vote_ranks.h"

using namespace dmuon;
using namespace dmuon::testing;

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

TEST_CASE("without overlap one buffer of votes travels in a step, with it one for each window") {
  for (bool overlap : {false, true}) {
    VoteCase c = workers(2, Kind::signum);
    c.options.overlap = overlap;
    require_none(run_ranks(4, nodes_of(4, 2), [&](Communicator& world) {
      Trace trace;
      VoteCase traced = c;
      traced.options.trace = &trace;
      VoteJob job(world, traced);
      job.run();
      int64_t votes = 0;
      for (const Trace::Span& span : trace.spans()) votes += span.name == "vote";
      // Five units in windows of two, four steps.
      if (votes != (overlap ? 3 : 1) * 4) throw ShapeError(text(votes, " votes with overlap ", overlap));
    }));
  }
}

TEST_CASE("traffic of votes counts the groups of every transport") {
  for (VoteTransportKind kind : {VoteTransportKind::packed_gather, VoteTransportKind::packed_scatter, VoteTransportKind::hierarchical}) {
    VoteCase c = workers(4, Kind::signum);
    c.options.vote_transport = kind;
    c.options.overlap = false;
    std::atomic<int64_t> between = 0, total = 0, words = 0;
    require_none(run_ranks(4, nodes_of(4, 2), [&](Communicator& world) {
      VoteJob job(world, c);
      const TrafficBytes before = job.sharded().vote_traffic(), all_before = job.sharded().traffic();
      job.run_step(1);
      job.sharded().wait_for_parameters();
      const TrafficBytes after = job.sharded().vote_traffic(), all_after = job.sharded().traffic();
      between += after.between - before.between;
      total += after.inside + after.between - before.inside - before.between;
      if (all_after.between - all_before.between < after.between - before.between) throw ShapeError("votes are not part of all traffic");
      if (world.rank() > 0) return;
      for (const HeldPiece& held : job.sharded().held()) {
        if (!held.vote) continue;
        const Shape& shape = job.sharded().inventory().parameters()[static_cast<size_t>(held.piece.tensor)].shape;
        SignSegments segments{held.piece.first, held.piece.count, shape.elements() / (shape.rank() > 1 ? shape[0] : 1), vote_cut_elements};
        words += sign_words(held.piece.count) + sign_header_words(segments);
      }
    }));
    const VoteBytes expected = vote_bytes(kind, {4, 2, words});
    INFO(name_of(kind));
    CHECK(total == expected.total);
    CHECK(between == expected.between);
  }
}
