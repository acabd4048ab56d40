// What ranks that vote decide together or refuse: messages that are not finite, replicas that differ, reports of votes,
// options that votes cannot have, memory.
#include <atomic>
#include <bit>
#include <set>

#include "dmuon/core/trace.h"
#include "shard/operator_norm.h"
#include "shard/vote_ranks.h"
#include "train/counting_communicator.h"

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
      CHECK_THAT(found, !Catch::Contains("A master changed"));
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
      // All are fewer than a sample; rows that no worker uses do not count, two of five where there is one worker.
      const int64_t unused = 7 * 12 + 8 * 33 + 33;
      CHECK(report.sampled == report.elements - (replicas == 1 ? 2 : 1) * unused);
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
      CHECK(report.observe_seconds > 0.0);
    }
  }
}

TEST_CASE("what is observed follows from the step's number, and no matrix is left out") {
  VoteCase c = workers(1, Kind::signum);
  c.observe = true;
  const auto self = make_self_communicator();
  std::map<int64_t, std::string> at;
  VoteJob job(*self, c);
  for (int64_t step = 1; step <= 40; ++step) {
    job.run_step(step);
    at[step] = job.sharded().vote_report().matrix;
  }
  VoteJob resumed(*self, c);
  for (int64_t step : {17, 18, 40}) {
    resumed.run_step(step);
    CHECK(resumed.sharded().vote_report().matrix == at[step]);
  }
  std::set<std::string> all;
  for (const auto& [step, matrix] : at) all.insert(matrix);
  CHECK(all ==
        std::set<std::string>{"embedding.weight", "blocks.0.a", "blocks.0.b", "blocks.0.c", "blocks.1.a", "blocks.2.c", "head.weight"});
}

TEST_CASE("the operator norm of known matrices") {
  const auto backend = make_cpu_backend({});
  Stream& stream = backend->compute_stream();
  const auto norm = [&](int64_t rows, int64_t columns, const std::function<float(int64_t, int64_t)>& value) {
    std::vector<float> values;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) values.push_back(value(r, c));
    const Tensor matrix = backend->allocate(Shape{rows, columns}, DType::float32, MemoryCategory::workspace, "matrix");
    backend->copy_from_host(stream, values.data(), matrix);
    return operator_norm(*backend, stream, matrix);
  };
  CHECK(norm(37, 500, [](int64_t r, int64_t c) { return (r + c) % 2 == 0 ? 1.0f : -1.0f; }) == Approx(std::sqrt(37.0 * 500.0)));
  CHECK(norm(20, 20, [](int64_t r, int64_t c) { return r == c ? -1.0f : 0.0f; }) == Approx(1.0));
  CHECK(norm(64, 16, [](int64_t r, int64_t c) { return std::popcount(static_cast<uint64_t>(r & c)) % 2 == 0 ? 1.0f : -1.0f; }) ==
        Approx(8.0));  // columns of a Hadamard matrix
  CHECK(norm(3, 4, [](int64_t, int64_t) { return 0.0f; }) == 0.0);
  CHECK(norm(1, 1, [](int64_t, int64_t) { return -2.0f; }) == Approx(2.0));
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
  using enum VoteTransportKind;
  for (DType dtype : {DType::float32, DType::bfloat16})
    for (int replicas : {2, 4})
      for (VoteTransportKind kind : {int8_sum, packed_gather, packed_scatter, hierarchical}) {
        VoteCase c = workers(replicas, dtype == DType::float32 ? Kind::mean : Kind::signum);
        c.options.compute_dtype = dtype;
        c.options.vote_transport = kind;
        c.observe = true;
        require_none(run_ranks(4, nodes_of(4, 2), [&](Communicator& world) {
          const auto after_two_steps = [&](Communicator& ranks, const VoteCase& of) {
            TrainRank rank(ranks, of);
            for (int64_t step = 1; step <= 2; ++step) rank.step(ranks.rank(), step, 0.1, 0.0);
            rank.sharded->wait_for_parameters();
            return rank.backend->allocator().statistics();
          };
          const MemoryStatistics real = after_two_steps(world, c);
          VoteCase dry = c;
          dry.mode = HostMode::shape_only;
          const auto counting = make_counting_communicator(world.rank(), {2, {replicas, 4 / replicas}});
          const MemoryStatistics predicted = after_two_steps(*counting, dry);
          for (MemoryCategory category : {MemoryCategory::parameters, MemoryCategory::gradients, MemoryCategory::optimizer_state,
                                          MemoryCategory::communication, MemoryCategory::workspace}) {
            const int64_t found = real[category].peak, expected = predicted[category].peak;
            if (found == 0 || expected < found || static_cast<double>(expected) > 1.13 * static_cast<double>(found))
              throw ShapeError(text(name_of(category), " of rank ", world.rank(), ", ", name_of(dtype), ", ", replicas, " workers, ",
                                    name_of(kind), ": ", expected, " bytes predicted, ", found, " taken"));
          }
        }));
      }
}

TEST_CASE("votes travel in ballots of whole windows: one without overlap, else as large as asked for") {
  struct Expected {
    bool overlap;
    int64_t bytes, votes;
  };
  // Five units in windows of two, of some 200, 100 and 180 bytes; four steps. A small rest joins the ballot before it.
  for (const Expected& expected : {Expected{false, 0, 1}, Expected{true, 0, 3}, Expected{true, 150, 2}, Expected{true, 250, 1},
                                   Expected{true, ShardedModelOptions{}.vote_ballot_bytes, 1}}) {
    VoteCase c = workers(2, Kind::signum);
    c.options.overlap = expected.overlap;
    c.options.vote_ballot_bytes = expected.bytes;
    require_none(run_ranks(2, nodes_of(2, 2), [&](Communicator& world) {
      Trace trace;
      VoteCase traced = c;
      traced.options.trace = &trace;
      VoteJob job(world, traced);
      job.run();
      const std::string difference = job.compare_with_simulation();
      if (!difference.empty()) throw ShapeError(difference);
      int64_t votes = 0;
      for (const Trace::Span& span : trace.spans()) votes += span.name == "vote";
      if (votes != expected.votes * 4) throw ShapeError(text(votes, " votes, overlap ", expected.overlap, ", ", expected.bytes, " bytes"));
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
