// scripts/train.sbatch with stand-ins for srun and scontrol: what it starts is started, stopped by a signal and resumed.
#include <filesystem>

#include "dmuon/core/file.h"
#include "dmuon/core/text.h"
#include "io/io_support.h"
#include "support/catch.h"
#include "support/mpi_launch.h"
#include "support/paths.h"

using namespace dmuon;
using namespace dmuon::testing;

namespace {

void write_program(const Path& path, const std::string& content) {
  write_bytes(path, "#!/usr/bin/env bash\n" + content);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
}

// A cluster of this machine: srun starts the ranks by mpiexec, and passes signals on as the real one does.
struct Cluster {
  TemporaryDirectory directory;

  Cluster() {
    std::filesystem::create_directory(directory / "bin");
    // What the configuration names relative to where the job was submitted from.
    for (const char* name : {"configs", "README.md"})
      std::filesystem::create_symlink(Path(dmuon::testing::source_directory()) / name, directory / name);
    write_program(directory / "bin/srun", text("echo \"srun $*\" >>'", (directory / "srun.log").string(),
                                               "'\n"
                                               "[[ $1 == --mpi=pmix && $2 == --kill-on-bad-exit=1 && $3 == -n ]] || exit 99\n"
                                               "ranks=$4; shift 4\n"
                                               "unset SLURM_JOB_ID SLURM_NTASKS SLURM_JOB_NODELIST\n"
                                               "exec ",
                                               DMUON_MPIEXEC, " --oversubscribe --bind-to none -np \"$ranks\" \"$@\"\n"));
    write_program(directory / "bin/scontrol", text("echo \"scontrol $*\" >>'", (directory / "scontrol.log").string(), "'\n"));
  }

  std::string text_of(const char* name) const {
    return std::filesystem::exists(directory / name) ? read_file(directory / name) : std::string();
  }

  // `signal_when`: SIGUSR1 to the batch shell as soon as a file matches this pattern, as preemption would send it.
  Ended submit(int start, const std::string& arguments, const std::string& signal_when = "") const {
    const std::string batch = text("bash ", dmuon::testing::source_directory(), "/scripts/train.sbatch ", arguments);
    const std::string environment =
        text("PATH='", (directory / "bin").string(), "':$PATH SLURM_NTASKS=2 SLURM_JOB_ID=4711 SLURM_RESTART_COUNT=", start,
             " SLURM_SUBMIT_DIR='", directory.path().string(), "' DMUON_TRAIN='", DMUON_TRAIN, "'");
    const std::string script = signal_when.empty() ? text("exec env ", environment, " ", batch)
                                                   : text("env ", environment, " ", batch, " & until compgen -G \"", signal_when,
                                                          "\" >/dev/null || ! kill -0 $!; do sleep 0.1; done; kill -USR1 $!; wait $!");
    write_program(directory / "submit", script + "\n");
    return run_command((directory / "submit").string(), 90);
  }
};

}  // namespace

TEST_CASE("a job is checked, started on its ranks, stopped by a signal, requeued and resumed") {
  const Cluster cluster;
  const std::string output = (cluster.directory / "run").string();
  const auto arguments = [&](int steps) {
    return text("configs/smoke_qwen2.5_0.5b.json --set threads=1 --set checkpoint.interval=5 --set training.steps=", steps,
                " --set output=", output);
  };
  // SIGUSR1 comes as soon as there is a checkpoint: the run is then under way.
  const Ended stopped = cluster.submit(0, arguments(1'000'000), output + "/checkpoints/step-*");
  INFO(stopped.output);
  CHECK(stopped.exit_code == 0);
  CHECK_THAT(stopped.output, Catch::Contains("parameters") && Catch::Contains("job 4711") && Catch::Contains("2 ranks, start 1"));
  CHECK_THAT(stopped.output, Catch::Contains("ended with 75") && Catch::Contains("saved and stopped on request"));
  CHECK(cluster.text_of("scontrol.log") == "scontrol requeue 4711\n");
  CHECK_THAT(cluster.text_of("srun.log"), Catch::Contains("-n 2 "));

  int last = 0;
  for (const auto& entry : std::filesystem::directory_iterator(output + "/checkpoints"))
    if (const std::string name = entry.path().filename().string(); name.starts_with("step-"))
      last = std::max(last, std::stoi(name.substr(5)));
  REQUIRE(last >= 5);
  const Ended resumed = cluster.submit(1, text(arguments(1'000'000), " --set training.steps=", last + 2));
  INFO(resumed.output);
  CHECK(resumed.exit_code == 0);
  CHECK_THAT(resumed.output, Catch::Contains(text("resumed step ", last)) && Catch::Contains("ended with 0"));
  CHECK_THAT(resumed.output, !Catch::Contains("dry run"));
  CHECK(cluster.text_of("scontrol.log") == "scontrol requeue 4711\n");
}

TEST_CASE("a job with a mistake ends before it starts a rank, a failing one is not started again for ever") {
  const Cluster cluster;
  const std::string good = text("configs/smoke_qwen2.5_0.5b.json --set threads=1 --set output=", (cluster.directory / "run").string());
  const Ended mistake = cluster.submit(0, good + " --set model.heads=3");
  INFO(mistake.output);
  CHECK(mistake.exit_code == 2);
  CHECK(cluster.text_of("srun.log").empty());
  CHECK(cluster.submit(0, "").exit_code != 0);

  // Three failures in a row are tried again, the fourth is not; starts after a save do not count.
  for (int start : {5, 6, 7}) {
    write_program(cluster.directory / "bin/srun", "exit 4\n");
    CHECK(cluster.submit(start, good).exit_code == 0);
  }
  CHECK(cluster.submit(8, good).exit_code == 4);
  write_program(cluster.directory / "bin/srun", "exit 75\n");
  CHECK(cluster.submit(9, good).exit_code == 0);
  write_program(cluster.directory / "bin/srun", "exit 4\n");
  CHECK(cluster.submit(10, good).exit_code == 0);
  const std::string five =
      "scontrol requeue 4711\nscontrol requeue 4711\nscontrol requeue 4711\nscontrol requeue 4711\nscontrol requeue 4711\n";
  CHECK(cluster.text_of("scontrol.log") == five);
  write_program(cluster.directory / "bin/srun", "exit 3\n");
  CHECK(cluster.submit(0, good).exit_code == 3);
  CHECK(cluster.text_of("scontrol.log") == five);
}
