// Ranks on devices that lose a peer in the middle of a run: all of them end, by themselves, in time, and what was saved resumes.
#include "support/catch.h"
#include "train/device_settings.h"

using namespace dmuon;
using namespace dmuon::testing;

namespace {

constexpr int few = 3, grid_ranks = 4;

// Goes on from step 4 for ever; rank 1 is hit by the signal after two more steps. Every rank writes its exit code and when it ended.
Ended strike(const SmallRun& run, int ranks, const std::string& signal, const std::string& launcher_options, const std::string& arguments) {
  run.write("rank.sh",
            text("cd ", run.path(""), "\nlines() { wc -l < run/metrics.jsonl; }\nbefore=$(lines)\nenv ", plugins, DMUON_TRAIN,
                 " --config run.json --set output=run --set threads=1 --resume must --set training.steps=1000000 ",
                 "--set evaluation.interval=0 --set checkpoint.interval=1000000 ",
                 "--set communication.step_timeout_seconds=4 --set communication.checkpoint_timeout_seconds=4 ", cuda, arguments,
                 " &\nchild=$!\n", "if [ $OMPI_COMM_WORLD_RANK = 1 ]; then\n",
                 "  while kill -0 $child && [ $(lines) -lt $((before + 2)) ]; do sleep 0.02; done\n", "  date +%s.%N > struck; kill -",
                 signal, " $child\nfi\n", "wait $child; code=$?; date +%s.%N > time.$OMPI_COMM_WORLD_RANK\n",
                 "echo $code > code.$OMPI_COMM_WORLD_RANK; exit $code\n"));
  return run_command(
      text(DMUON_MPIEXEC, " --oversubscribe --bind-to none ", launcher_options, " -np ", ranks, " bash ", run.path("rank.sh")), 60);
}

double number_in(const SmallRun& run, const std::string& file) { return std::stod(read_file(run.path(file))); }

// What was saved is as it was, and goes on.
void check_saved(const SmallRun& run, int ranks, const std::map<std::string, std::string>& saved, const std::string& arguments) {
  CHECK(run.tensors("run", 4) == saved);
  const Ended resumed =
      run.train(ranks, "run", cuda + "--set evaluation.interval=0 --set training.steps=5 --resume must " + arguments, plugins);
  INFO(resumed.output);
  CHECK(resumed.exit_code == 0);
}

}  // namespace

TEST_CASE("ranks notice that a peer on a device has died, end within the deadline, and harm no checkpoint") {
  const SmallRun run;
  const std::string arguments = distribution("stage", "3");
  REQUIRE(run.train(few, "run", cuda + fewer + arguments, plugins).exit_code == 0);
  const auto saved = run.tensors("run", 4);
  // This launcher ends a job when a rank dies. Here it must not: launchers between hosts need long for it.
  const Ended ended = strike(run, few, "KILL", "--enable-recovery", arguments);
  INFO(ended.output);
  for (const char* rank : {"0", "2"}) {
    CHECK(number_in(run, text("code.", rank)) == 4);
    CHECK(number_in(run, text("time.", rank)) - number_in(run, "struck") < 20);
  }
  CHECK(number_in(run, "code.1") == 137);
  CHECK(ended.output.find("did not finish within 4.0s") != std::string::npos);
  CHECK(ended.output.find("No sign of life from rank 1") != std::string::npos);
  check_saved(run, few, saved, arguments);
}

TEST_CASE("on a grid, where work of one group waits behind another's, all groups end when a peer has died") {
  const SmallRun run;
  const std::string arguments = distribution("nodes", "2") + distribution("stage", "3");
  REQUIRE(run.train(grid_ranks, "run", cuda + fewer + arguments, plugins).exit_code == 0);
  const auto saved = run.tensors("run", 4);
  const Ended ended = strike(run, grid_ranks, "KILL", "--enable-recovery", arguments);
  INFO(ended.output);
  // Whose group has the dead rank ends first, and with the first that ends the launcher ends the rest.
  CHECK(ended.output.find("did not finish within 4.0s") != std::string::npos);
  CHECK(ended.output.find("No sign of life from rank 1") != std::string::npos);
  CHECK(ended.output.find("has lasted") == std::string::npos);  // what the watchdog says of a rank that hangs
  for (const char* rank : {"0", "2", "3"})
    if (std::filesystem::exists(run.path(text("code.", rank)))) CHECK(number_in(run, text("time.", rank)) - number_in(run, "struck") < 20);
  check_saved(run, grid_ranks, saved, arguments);
}

TEST_CASE("a peer on a device that is stopped is named at the deadline, the job ends and harms no checkpoint") {
  const SmallRun run;
  const std::string arguments = distribution("stage", "1");
  REQUIRE(run.train(few, "run", cuda + fewer + arguments, plugins).exit_code == 0);
  const auto saved = run.tensors("run", 4);
  const Ended ended = strike(run, few, "STOP", "", arguments);
  INFO(ended.output);
  CHECK(ended.exit_code == 4);
  CHECK(ended.output.find("did not finish within 4.0s") != std::string::npos);
  CHECK(ended.output.find("No sign of life from rank 1") != std::string::npos);
  check_saved(run, few, saved, arguments);
}
