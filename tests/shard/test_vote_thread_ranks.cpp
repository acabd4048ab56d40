// Jobs that agree by vote, on ranks that are threads of one process: what the hybrid shares and what it equals, what crosses
// between nodes, and training on very different data.
#include <atomic>

#include "dmuon/core/trace.h"
#include "shard/vote_ranks.h"

using namespace dmuon;
using namespace dmuon::testing;

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
      std::atomic<int64_t> sent = 0, between = 0, bits = 0, headers = 0, norm = 0;
      require_none(run_ranks(ranks, nodes_of(ranks, 2), [&](Communicator& world) {
        TrainRank rank(world, c);
        const int64_t before = rank.sharded->traffic().between, votes_before = rank.sharded->vote_traffic().between;
        rank.step(world.rank(), 1, 0.1, 0.0);
        rank.sharded->wait_for_parameters();
        if (world.rank() >= world.size() / 2) return;  // one node's
        // A float64 for every 64 elements of a tensor, sent whole to each rank of the other node.
        for (const ParameterDeclaration& parameter : rank.model.inventory().parameters())
          norm += (parameter.shape.elements() + 63) / 64 * 8 * (world.size() / 2);
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
      CHECK(between - sent == norm);  // nothing else
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

TEST_CASE("units with both kinds of tensors reduce each kind in its own time") {
  for (int stage : {2, 3})
    for (int outstanding : {0, 1}) {        // few buffers, soon used again
      VoteCase c = workers(2, Kind::mean);  // two regions in every block
      c.options.stage = stage;
      c.options.look_ahead = outstanding;
      c.options.outstanding_reduces = outstanding;
      c.options.overlap = false;
      const uint64_t expected = train(4, c, 2, 0.1, true, 3);
      c.options.overlap = true;
      INFO("stage " << stage << ", " << outstanding << " outstanding");
      for (uint64_t seed : {1, 2}) CHECK(train(4, c, 2, 0.1, false, 3, seed) == expected);
    }
}

TEST_CASE("a unit's regions leave together: the second does not wait until the first has arrived") {
  VoteCase c = workers(2, Kind::mean);
  c.options.outstanding_reduces = 100;  // no unit waits for a buffer of another one
  for (uint64_t seed : {1, 2})
    require_none(run_ranks(4, nodes_of(4, 2), [&](Communicator& ranks) {
      DelayedCommunicator world(ranks, seed);
      Trace trace;
      VoteCase traced = c;
      traced.options.trace = &trace;
      TrainRank rank(world, traced);
      rank.step(ranks.rank(), 1, 0.1, 0.0);
      int64_t reductions = 0;
      for (const Trace::Span& span : trace.spans()) {
        reductions += span.name.rfind("reduce blocks.", 0) == 0;
        if (span.name.rfind("wait for gradient buffer of", 0) == 0) throw ShapeError(text("\"", span.name, "\""));
      }
      if (reductions != 2 * 3) throw ShapeError(text(reductions, " reductions of two units with a region of means and one of votes"));
    }));
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

TEST_CASE("micro-batches collect where votes read them, and what no rank shares is never rounded") {
  // Every rank a worker: nothing of the gradients travels at any stage.
  VoteCase pure = workers(2, Kind::signum);
  pure.clip = 0.0;
  const uint64_t expected = train(2, pure, 3, 0.1, true, 3);
  pure.options.stage = 1;
  pure.options.gradient_dtype = DType::bfloat16;
  CHECK(train(2, pure, 3, 0.1, false, 3) == expected);
  // Inside a node they do, each micro-batch or their sum: other roundings, but replicas stay equal.
  for (int stage : {1, 2, 3})
    for (DType dtype : {DType::float32, DType::bfloat16}) {
      VoteCase hybrid = workers(2, Kind::mean);
      hybrid.options.stage = stage;
      hybrid.options.gradient_dtype = dtype;
      const uint64_t first = train(4, hybrid, 2, 0.1, true, 2);
      hybrid.options.overlap = false;
      CHECK(train(4, hybrid, 2, 0.1, false, 2) == first);
    }
}
