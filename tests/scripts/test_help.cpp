// What help texts promise: every script explains itself, and the first command of dmuon_train's help works as it stands.
#include <filesystem>
#include <sstream>

#include "dmuon/core/file.h"
#include "dmuon/core/text.h"
#include "support/catch.h"
#include "support/mpi_launch.h"
#include "support/paths.h"
#include "train/run_support.h"

using namespace dmuon;
using namespace dmuon::testing;

TEST_CASE("every script tells its usage and does nothing else") {
  int scripts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(text(source_directory(), "/scripts"))) {
    const std::string name = entry.path().filename().string();
    if (!name.ends_with(".sh") && !name.ends_with(".sbatch")) continue;
    ++scripts;
    for (const char* option : {"--help", "-h"}) {
      const Ended ended = run_command(text("bash ", entry.path().string(), " ", option), 10);
      INFO(name << "\n" << ended.output);
      CHECK(ended.exit_code == 0);
      CHECK(ended.output.size() > 60);
      CHECK(ended.output.find("set -e") == std::string::npos);
      CHECK(ended.output.find("#SBATCH") == std::string::npos);
    }
  }
  CHECK(scripts > 10);
}

TEST_CASE("the quickstart is planned from a fresh tree, for any number of steps") {
  for (const char* steps : {"1", "100"}) {
    const Ended ended = run_command(text("sh -c 'cd ", source_directory(), " && exec ", DMUON_TRAIN,
                                         " --config configs/quickstart.json --dry-run --set training.steps=", steps, "'"),
                                    60);
    INFO(ended.output);
    CHECK(ended.exit_code == 0);
  }
}

TEST_CASE("docs/benchmarks.md has a row and the fields of every subcommand of dmuon_bench") {
  if (std::string(DMUON_BENCH).empty()) return;  // a build without benchmarks
  const Ended ended = run_command(text(DMUON_BENCH, " --help"), 10);
  REQUIRE(ended.exit_code == 0);
  const std::string page = read_file(text(source_directory(), "/docs/benchmarks.md"));
  const size_t begin = ended.output.find("Subcommands:\n");
  REQUIRE(begin != std::string::npos);
  std::istringstream lines(ended.output.substr(begin));
  std::string line;
  int subcommands = 0;
  for (std::getline(lines, line); std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    if (!(words >> name) || line.rfind("  ", 0) != 0 || line[2] == ' ') continue;
    INFO(name);
    CHECK(count(page, text("\n| `", name, "` |")) == 2);
    ++subcommands;
  }
  CHECK(subcommands >= 20);
}
