// Whole runs in which workers vote: what is refused or told at the start, and how runs end that cannot go on.
#include "support/catch.h"
#include "train/vote_settings.h"

using namespace dmuon;
using dmuon::testing::count;
using dmuon::testing::Ended;
using dmuon::testing::SmallRun;
using dmuon::testing::transport;
using dmuon::testing::votes;

TEST_CASE("what votes cannot be joined with is refused by name, with a remedy") {
  const SmallRun run;
  const auto refused = [&](int ranks, const std::string& arguments, const std::vector<std::string>& named) {
    const Ended ended = run.train(ranks, "refused", votes + arguments);
    INFO(ended.output);
    CHECK(ended.exit_code == 2);
    for (const std::string& part : named) CHECK(ended.output.find(part) != std::string::npos);
  };
  refused(1, "--set distribution.method=gather", {"distribution.method", "gather", "owner"});
  refused(1, "--set distribution.method=replicated", {"distribution.method", "replicated", "owner"});
  refused(2, "--set distribution.stage=3", {"distribution.stage", "distribution.replicas"});
  refused(2, "--set 'distribution.unit_stages=[\"blocks.1=3\"]'", {"distribution.unit_stages", "unit blocks.1", "distribution.replicas"});
  refused(2, "--set distribution.replicas=2 --set distribution.stage=3", {"distribution.stage", "distribution.replicas"});
  refused(1, transport("hierarchical") + "--dry-run --ranks 4 ", {"distribution.vote_transport", "distribution.nodes"});
  refused(2, transport("hierarchical"), {"distribution.vote_transport", "distribution.nodes"});
  refused(3, "--set distribution.replicas=2", {"distribution.replicas = 2", "3 ranks"});
  // Sequences have 16 tokens, and ranks fill up in their order.
  refused(4, "--set training.batch_tokens=16", {"training.batch_tokens = 16", "1 sequences", "worker 1 of 4", "at least 64 tokens"});
  refused(4, "--set training.batch_tokens=32 --set distribution.replicas=2",
          {"training.batch_tokens = 32", "2 sequences", "worker 1 of 2", "at least 48 tokens", "distribution.replicas"});
  refused(1, "--set training.batch_tokens=48 --dry-run --ranks 4", {"training.batch_tokens = 48", "worker 3 of 4"});
  refused(1, transport("packed_scater"), {"distribution.vote_transport", "packed_scatter"});
}

TEST_CASE("a unit without voted tensors may be of stage 3 where every rank is a worker") {
  const SmallRun run;
  REQUIRE(run.train(2, "one", votes).exit_code == 0);
  const Ended ended = run.train(2, "mixed", votes + "--set 'distribution.unit_stages=[\"embedding=3\"]'");
  INFO(ended.output);
  REQUIRE(ended.exit_code == 0);
  CHECK(run.tensors("mixed", 12) == run.tensors("one", 12));
}

TEST_CASE("workers of unlike shares are told, alike ones are not") {
  const SmallRun run;
  const auto output = [&](const std::string& name, const std::string& arguments) {
    const Ended ended = run.train(4, name, votes + "--set training.steps=1 " + arguments);
    INFO(ended.output);
    CHECK(ended.exit_code == 0);
    return ended.output;
  };
  CHECK(output("six", "").find("workers have 1 to 2 sequences of a step and one vote each") != std::string::npos);
  CHECK(output("eight", "--set training.batch_tokens=128").find("one vote each") == std::string::npos);
  CHECK(output("three", "--set training.batch_tokens=48 --set distribution.replicas=2").find("workers have 1 to 2 sequences") !=
        std::string::npos);
}

TEST_CASE("a message that is not finite ends a run of votes on every rank, said once, and nothing is saved of it") {
  const SmallRun run;
  // After the first step the decay of this vector, which is a part of its message, is beyond float32; loss and gradients are not.
  const Ended ended = run.train(3, "message",
                                votes + R"(--set 'optimizer.overrides=[{"match": "final_norm.weight", "rule": "signum", )"
                                        R"("learning_rate": 1e34, "decay": "coupled", "weight_decay": 1e6}]' )"
                                        "--set training.non_finite=skip --set checkpoint.interval=1");
  INFO(ended.output);
  CHECK(ended.exit_code == 3);
  CHECK(count(ended.output, "step 2: the message that a worker would send of parameter final_norm.weight") == 1);
  CHECK(count(ended.output, "covers gradients") == 1);
  CHECK(std::filesystem::exists(run.path("message") + "/checkpoints/step-00000001"));
  CHECK_FALSE(std::filesystem::exists(run.path("message") + "/checkpoints/step-00000002"));
}

TEST_CASE("a number that is not finite ends a run of votes on every rank, saying once what and where") {
  const SmallRun run;
  const std::string diverging = "--set optimizer.auxiliary.learning_rate=1e30 --set training.gradient_clip=0 ";
  const Ended ended = run.train(3, "nan", votes + diverging);
  INFO(ended.output);
  CHECK(ended.exit_code == 3);
  CHECK(count(ended.output, "is not finite") == 1);
  CHECK_FALSE(std::filesystem::exists(run.path("nan") + "/checkpoints/step-00000004"));
  const Ended skipped = run.train(3, "skip", votes + diverging + "--set training.non_finite=skip --set training.maximum_skips=2");
  INFO(skipped.output);
  CHECK(skipped.exit_code == 3);
  CHECK(count(skipped.output, "3 steps in a row") == 1);
  CHECK(count(skipped.output, "the update is skipped") == 2);
}

TEST_CASE("a worker that dies ends the job within ten seconds, and is named") {
  const SmallRun run;
  run.write("rank.sh", text("#!/bin/bash\nif [ \"$OMPI_COMM_WORLD_RANK\" = 1 ]; then (for i in $(seq 600); do [ -d ", run.path("dies"),
                            "/checkpoints/step-00000004 ] && break; sleep 0.05; done; date +%s.%N > ", run.path("when"),
                            "; kill -KILL $$) & fi\nexec ", DMUON_TRAIN, " --config ", run.path("run.json"),
                            " --set output=", run.path("dies"), " --set threads=1 --set training.steps=1000000 ", votes, "\n"));
  const Ended ended = dmuon::testing::run_command(text("bash -c '", DMUON_MPIEXEC, " --oversubscribe --bind-to none -np 3 bash ",
                                                       run.path("rank.sh"), "; code=$?; date +%s.%N > ", run.path("end"), "; exit $code'"),
                                                  60);
  INFO(ended.output);
  CHECK(ended.exit_code != 0);
  CHECK(ended.exit_code != 124);
  CHECK(std::stod(read_file(run.path("end"))) - std::stod(read_file(run.path("when"))) < 10.0);
  CHECK(ended.output.find("rank 1") != std::string::npos);
}
