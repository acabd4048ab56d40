// How runs end before their last step: signals, numbers that are not finite, ranks that fail or fall silent.
#include "support/catch.h"
#include "train/run_support.h"

using namespace dmuon;
using dmuon::testing::Ended;
using dmuon::testing::SmallRun;

namespace {

// Starts `command` in the background, sends `signal` to it after the first saved step, and waits.
Ended signalled(const SmallRun& run, const std::string& command, const std::string& output, const std::string& signal) {
  run.write("signal.sh", text("set -m\n", command, " > ", run.path("out"), " 2>&1 &\nchild=$!\n", "for i in $(seq 300); do [ -d ",
                              run.path(output), "/checkpoints/step-00000004 ] && break; sleep 0.05; done\n", "kill -", signal,
                              " $child\nwait $child\ncode=$?\ncat ", run.path("out"), "\nexit $code\n"));
  return dmuon::testing::run_command("bash " + run.path("signal.sh"), 60);
}

std::string train_command(const SmallRun& run, const std::string& output) {
  return text(DMUON_TRAIN, " --config ", run.path("run.json"), " --set output=", run.path(output),
              " --set threads=1 --set training.steps=1000000");
}

}  // namespace

TEST_CASE("SIGTERM, SIGINT and SIGUSR1 to a process save at the next step and exit with 75") {
  const SmallRun run;
  for (const char* signal : {"TERM", "INT", "USR1"}) {
    const Ended ended = signalled(run, train_command(run, signal), signal, signal);
    INFO(ended.output);
    CHECK(ended.exit_code == 75);
    CHECK(ended.output.find("stopped on request after saving") != std::string::npos);
    const Ended verified = dmuon::testing::run_command(text(DMUON_CHECKPOINT, " verify ", run.path(signal), "/checkpoints"), 30);
    CHECK(verified.exit_code == 0);
  }
}

TEST_CASE("the same request delivered twice within moments is one request") {
  const SmallRun run;
  const Ended ended = signalled(run, train_command(run, "twice"), "twice", "TERM $child; sleep 0.05; kill -TERM");
  INFO(ended.output);
  CHECK(ended.exit_code == 75);
}

TEST_CASE("SIGTERM to one rank of several stops them all at one step") {
  const SmallRun run;
  run.write("rank.sh",
            text("#!/bin/bash\nif [ \"$OMPI_COMM_WORLD_RANK\" = 1 ]; then (for i in $(seq 300); do [ -d ", run.path("one"),
                 "/checkpoints/step-00000004 ] && break; sleep 0.05; done; kill -TERM $$) & fi\nexec ", train_command(run, "one"), "\n"));
  const Ended ended = dmuon::testing::run_ranks_of(DMUON_MPIEXEC, 3, "bash " + run.path("rank.sh"), 60);
  INFO(ended.output);
  CHECK(ended.exit_code == 75);
}

TEST_CASE("SIGUSR1 through mpirun stops all ranks at one step with 75") {
  const SmallRun run;
  const Ended ended =
      signalled(run, text(DMUON_MPIEXEC, " --oversubscribe --bind-to none -np 2 ", train_command(run, "two")), "two", "USR1");
  INFO(ended.output);
  CHECK(ended.exit_code == 75);
  const Ended verified = dmuon::testing::run_command(text(DMUON_CHECKPOINT, " verify ", run.path("two"), "/checkpoints"), 30);
  INFO(verified.output);
  CHECK(verified.exit_code == 0);
}

namespace {

// A run of `ranks` ranks whose last one gets SIGTERM a moment after the log of the run holds `content`.
Ended stopped_amid(const SmallRun& run, int ranks, const std::string& output, const std::string& content, const std::string& arguments) {
  run.write("amid.sh", text("#!/bin/bash\nif [ \"${OMPI_COMM_WORLD_RANK:-0}\" = ", ranks - 1, " ]; then (for i in $(seq 600); do grep -q '",
                            content, "' ", run.path(output),
                            "/log.txt 2>/dev/null && break; sleep 0.05; done; sleep 0.3; kill -TERM $$) & fi\nexec ", DMUON_TRAIN,
                            " --config ", run.path("run.json"), " --set output=", run.path(output), " --set threads=1 ", arguments, "\n"));
  const std::string command = "bash " + run.path("amid.sh");
  return ranks == 1 ? dmuon::testing::run_command(command, 40) : dmuon::testing::run_ranks_of(DMUON_MPIEXEC, ranks, command, 40);
}

}  // namespace

TEST_CASE("a signal amid an evaluation is heard; the resumed run makes the evaluation and is the one that was never stopped") {
  const SmallRun run;
  std::string words;
  while (words.size() < 2000000) words += "word7 word12 word39.\n";
  run.write("long.txt", words);  // half a minute of evaluation
  const std::string data = text("--set data.validation=[\\\"", run.path("long.txt"), "\\\"] ");
  const std::string short_set = data + "--set evaluation.maximum_tokens=480";
  const Ended ended = stopped_amid(run, 2, "amid", "step  5/12", data);
  INFO(ended.output);
  REQUIRE(ended.exit_code == 75);
  CHECK(ended.output.find("saved step 6") != std::string::npos);
  CHECK(run.metrics("amid").find("step=6 ") != std::string::npos);
  CHECK(run.metrics("amid").find("validation_loss") == std::string::npos);
  const Ended resumed = run.train(2, "amid", short_set);
  INFO(resumed.output);
  REQUIRE(resumed.exit_code == 0);
  REQUIRE(run.train(2, "whole", short_set).exit_code == 0);
  CHECK(run.tensors("amid", 12) == run.tensors("whole", 12));
  CHECK(run.metrics("amid") == run.metrics("whole"));
}

TEST_CASE("a signal to a rank that waits for samples, or that takes part in them, ends them") {
  const SmallRun run;
  for (const char* stage : {"1", "3"}) {
    const std::string output = text("samples", stage);
    const Ended ended = stopped_amid(run, 2, output, "saved step 4",
                                     text("--set sample.tokens=1000000000 --set sample.interval=4 --set distribution.stage=", stage));
    INFO(ended.output);
    CHECK(ended.exit_code == 75);
    CHECK(ended.output.find("saved step 5") == std::string::npos);
    CHECK(ended.output.find("--- sample") == std::string::npos);
    CHECK_FALSE(std::filesystem::exists(run.path(output) + "/samples.txt"));
  }
}

TEST_CASE("a run that diverges stops with 3, names step and tensor, and saves nothing bad") {
  const SmallRun run;
  for (int ranks : {1, 2}) {
    const std::string output = text("nan", ranks);
    const Ended ended = run.train(ranks, output, "--set optimizer.auxiliary.learning_rate=1e30 --set training.gradient_clip=0");
    INFO(ended.output);
    CHECK(ended.exit_code == 3);
    CHECK(ended.output.find("is not finite") != std::string::npos);
    CHECK(ended.output.find("step ") != std::string::npos);
    if (std::filesystem::exists(run.path(output) + "/checkpoints/step-00000004"))
      FAIL("a checkpoint was written after the weights had left the finite numbers");
  }
  const Ended skipped =
      run.train(1, "skip",
                "--set optimizer.auxiliary.learning_rate=1e30 --set training.gradient_clip=0 --set training.non_finite=skip "
                "--set training.maximum_skips=2");
  INFO(skipped.output);
  CHECK(skipped.exit_code == 3);
  CHECK(skipped.output.find("3 steps in a row") != std::string::npos);
}

TEST_CASE("a rank that stops answering ends the job at the deadline and is named") {
  const SmallRun run;
  // Rank 1 stops itself; rank 0 waits for it at most three seconds.
  run.write("rank.sh",
            text("#!/bin/bash\nif [ \"$OMPI_COMM_WORLD_RANK\" = 1 ]; then (for i in $(seq 300); do [ -d ", run.path("silent"),
                 "/checkpoints/step-00000004 ] && break; sleep 0.05; done; kill -STOP $$) & fi\nexec ", train_command(run, "silent"),
                 " --set communication.step_timeout_seconds=3 --set communication.checkpoint_timeout_seconds=3\n"));
  const Ended ended = dmuon::testing::run_ranks_of(DMUON_MPIEXEC, 2, "bash " + run.path("rank.sh"), 40);
  INFO(ended.output);
  CHECK(ended.exit_code != 0);
  CHECK(ended.exit_code != 124);
  CHECK(ended.seconds < 30);
  CHECK(ended.output.find("rank 1") != std::string::npos);
}

TEST_CASE("a rank that dies ends the job within seconds") {
  const SmallRun run;
  const Ended ended = run.train(3, "dies", "--set training.steps=1000000", "DMUON_CRASH_AT=mid_tensor_file:rank=2", 40);
  INFO(ended.output);
  CHECK(ended.exit_code != 0);
  CHECK(ended.exit_code != 124);
  CHECK(ended.seconds < 25);
}
