// Interrupted and resumed equals uninterrupted, bit for bit, wherever the process dies.
#include "dmuon/io/crash_points.h"
#include "support/catch.h"
#include "train/run_support.h"

using namespace dmuon;
using dmuon::testing::Ended;
using dmuon::testing::SmallRun;

TEST_CASE("resumed three times equals uninterrupted, bit for bit") {
  const SmallRun run;
  for (int ranks : {1, 3}) {
    const std::string whole = text("whole", ranks), parts = text("parts", ranks);
    const Ended reference = run.train(ranks, whole);
    INFO(reference.output);
    REQUIRE(reference.exit_code == 0);
    // Killed right after each of the first two saves became visible, and once in the middle of writing the third.
    for (const char* point : {"after_rename", "after_rename", "mid_tensor_file"})
      CHECK(run.train(ranks, parts, "", text("DMUON_CRASH_AT=", point)).exit_code != 0);
    const Ended last = run.train(ranks, parts, "--resume must");
    INFO(last.output);
    REQUIRE(last.exit_code == 0);
    CHECK(last.output.find("resumed step 8") != std::string::npos);
    CHECK(run.tensors(parts, 12) == run.tensors(whole, 12));
    CHECK(run.tensors(parts, 8) == run.tensors(whole, 8));
    CHECK(run.metrics(parts) == run.metrics(whole));
  }
}

TEST_CASE("a run killed at any point of a save resumes from a complete checkpoint") {
  const SmallRun run;
  REQUIRE(run.train(1, "whole").exit_code == 0);
  for (const std::string& point : CrashPoints::names()) {
    const std::string output = "at_" + point;
    // One checkpoint is kept, so that the second save has one to delete: only there mid_retention kills.
    const Ended killed = run.train(1, output, "--set checkpoint.keep=1", "DMUON_CRASH_AT=" + point);
    CHECK(killed.exit_code != 0);
    const Ended resumed = run.train(1, output, "--set checkpoint.keep=1");
    INFO(point << "\n" << resumed.output);
    CHECK(resumed.exit_code == 0);
    CHECK(run.tensors(output, 12) == run.tensors("whole", 12));
    CHECK(run.metrics(output) == run.metrics("whole"));
  }
}

TEST_CASE("SIGKILL at random instants never costs more than the time since the last save") {
  const SmallRun run;
  REQUIRE(run.train(1, "whole", "--set training.steps=200").exit_code == 0);
  const Random random(5, RandomStream::test);
  Ended ended;
  int killed = 0, resumed = 0;
  for (uint64_t attempt = 0; attempt < 10; ++attempt) {
    // At a random instant after so many steps, not seconds, so that on any machine the kills fall into the run. `wait` returns
    // when the process is gone for certain, so that the next one finds the directory unlocked.
    const uint64_t lines = 10 + 40 * attempt + random.below(30, attempt);
    const double seconds = 0.02 * random.uniform(attempt, 1);
    run.write("kill.sh", text(DMUON_TRAIN, " --config ", run.path("run.json"), " --set output=", run.path("killed"),
                              " --set threads=1 --set training.steps=200 &\nchild=$!\n(until (($(wc -l < ", run.path("killed"),
                              "/metrics.jsonl) >= ", lines, ")) || ! kill -0 $child; do sleep 0.01; done; sleep ", seconds,
                              "; kill -9 $child) >/dev/null 2>&1 &\nwait $child\n"));
    ended = dmuon::testing::run_command("bash " + run.path("kill.sh"), 60);
    resumed += ended.output.find("resumed step ") != std::string::npos;
    if (ended.exit_code == 0) break;
    ++killed;
  }
  if (ended.exit_code != 0) ended = run.train(1, "killed", "--set training.steps=200");
  INFO(ended.output);
  REQUIRE(ended.exit_code == 0);
  CHECK(run.tensors("killed", 200) == run.tensors("whole", 200));
  // The kills must have fallen into the run, or this proves nothing.
  CHECK(killed >= 2);
  CHECK(resumed >= 1);
}

TEST_CASE("saved on four ranks, resumed on one, two and three: the same state, the same losses to rounding") {
  const SmallRun run;
  REQUIRE(run.train(4, "four").exit_code == 0);
  std::string hash;
  for (int ranks : {1, 2, 3}) {
    const std::string output = text("on", ranks);
    CHECK(run.train(4, output, "", "DMUON_CRASH_AT=after_rename:rank=0").exit_code != 0);
    const Ended resumed = run.train(ranks, output, "--resume must");
    INFO(resumed.output);
    REQUIRE(resumed.exit_code == 0);
    const size_t at = resumed.output.find("parameters ", resumed.output.find("resumed step 4"));
    REQUIRE(at != std::string::npos);
    const std::string found = resumed.output.substr(at + 11, 16);
    CHECK((hash.empty() || hash == found));
    hash = found;
    const auto loss_of_last_step = [&](const std::string& name) {
      const std::string metrics = run.metrics(name);
      const size_t position = metrics.rfind("train_loss=") + 11;
      return std::stod(metrics.substr(position));
    };
    CHECK(loss_of_last_step(output) == Approx(loss_of_last_step("four")).epsilon(1e-4));
  }
}

TEST_CASE("a flipped bit is never resumed from: by path it is refused, by itself it gives way") {
  const SmallRun run;
  REQUIRE(run.train(1, "run").exit_code == 0);
  const std::string step = run.path("run") + "/checkpoints/step-00000012", file = step + "/model-00001-of-00001.safetensors";
  std::string content = read_file(file);
  content[content.size() - 9] = static_cast<char>(content[content.size() - 9] ^ 4);
  std::ofstream(file, std::ios::binary) << content;
  const Ended named = run.train(1, "run", "--set training.steps=14 --resume " + step);
  INFO(named.output);
  CHECK(named.exit_code == 2);
  CHECK(named.output.find("model-00001-of-00001.safetensors") != std::string::npos);
  const Ended automatic = run.train(1, "run", "--set training.steps=14");
  INFO(automatic.output);
  CHECK(automatic.exit_code == 0);
  CHECK(automatic.output.find("resumed step 8") != std::string::npos);
}

TEST_CASE("text comes out of a checkpoint, the same for the same seed") {
  const SmallRun run;
  REQUIRE(run.train(1, "run").exit_code == 0);
  const std::string command = text(DMUON_GENERATE, " --threads 1 --tokens 60 --no-statistics --prompt word --model ", run.path("run"));
  const Ended first = dmuon::testing::run_command(command + " --seed 3", 60);
  INFO(first.output);
  REQUIRE(first.exit_code == 0);
  CHECK(first.output.substr(0, 4) == "word");
  CHECK(first.output.size() >= 64);
  CHECK(dmuon::testing::run_command(command + " --seed 3", 60).output == first.output);
  CHECK(dmuon::testing::run_command(command + " --seed 4", 60).output != first.output);
  CHECK(dmuon::testing::run_command(command + " --temperature 0 --seed 1", 60).output ==
        dmuon::testing::run_command(command + " --top-k 1 --seed 2", 60).output);
}

TEST_CASE("heads apart: Muon and Sign-Muon train, go on from a checkpoint, and refuse one written with heads together") {
  const SmallRun run;
  for (const std::string rule : {"muon", "sign_muon"}) {
    const std::string settings = text("--set optimizer.matrix.rule=", rule, " --set optimizer.matrix.learning_rate=0.01 ");
    const std::string apart = settings + "--set optimizer.matrix.per_head=true ", whole = rule + "_whole", parts = rule + "_parts";
    const Ended reference = run.train(2, whole, apart);
    INFO(reference.output);
    REQUIRE(reference.exit_code == 0);
    CHECK(reference.output.find("2 heads of [24, 24]") != std::string::npos);
    CHECK(run.train(2, parts, apart, "DMUON_CRASH_AT=after_rename").exit_code != 0);
    const Ended refused = run.train(2, parts, settings + "--resume must");
    CHECK(refused.exit_code != 0);
    CHECK_THAT(refused.output, Catch::Contains("another optimizer description") && Catch::Contains("per_head"));
    const Ended resumed = run.train(2, parts, apart + "--resume must");
    INFO(resumed.output);
    REQUIRE(resumed.exit_code == 0);
    CHECK(run.tensors(parts, 12) == run.tensors(whole, 12));
    REQUIRE(run.train(2, rule + "_together", settings).exit_code == 0);
    CHECK(run.tensors(rule + "_together", 12) != run.tensors(whole, 12));
  }
}
