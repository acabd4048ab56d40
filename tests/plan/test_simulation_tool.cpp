// dmuon_plan as a user runs it: output, files, errors, and every command that docs/scaling.md shows.
#include <filesystem>
#include <sstream>

#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "dmuon/core/text.h"
#include "support/catch.h"
#include "support/mpi_launch.h"
#include "support/paths.h"

using namespace dmuon;
using namespace dmuon::testing;

namespace {

Ended plan_in(const Path& directory, const std::string& arguments) {
  return run_command(text("sh -c 'cd ", directory.string(), " && ", DMUON_PLAN_TOOL, " ", arguments, "'"), 120);
}
Ended plan(const std::string& arguments) { return plan_in(source_directory(), arguments); }

struct TemporaryFolder {
  Path path = Path(build_directory()) / "test_simulation_tool";
  TemporaryFolder() {
    std::filesystem::remove_all(path);
    std::filesystem::create_directories(path);
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
};

void refused(const std::string& arguments, const std::string& problem) {
  const Ended ended = plan(arguments);
  INFO(arguments << "\n" << ended.output);
  CHECK(ended.exit_code == 2);
  CHECK(ended.output.find(problem) != std::string::npos);
}

const std::string gpt2 = "--inventory configs/inventories/gpt2-124m.json ";

}  // namespace

TEST_CASE("a job of a file: tables on the terminal, JSON and plot lines in files") {
  TemporaryFolder folder;
  const Path json = folder.path / "plan.json", lines = folder.path / "plan.tsv";
  const Ended ended = plan(
      gpt2 + text("--hardware configs/hardware/a800.json --ranks 2,16 --adamw-step-milliseconds 100 --planner-time-limit-seconds 1 --json ",
                  json.string(), " --plot ", lines.string()));
  INFO(ended.output);
  REQUIRE(ended.exit_code == 0);
  for (const char* expected : {"GPT-2 124M: 124,439,808 parameters, 72 matrices", "plan by greedy: 72 matrices in", "publish balance",
                               "2 ranks on 1 node", "16 ranks on 2 nodes", "round_robin", "adamw", "gather", "owner", "step ms"})
    CHECK(ended.output.find(expected) != std::string::npos);
  const Json document = parse_json(read_file(json), json.string());
  REQUIRE(document.at("simulations").as_array().size() == 2);
  CHECK(document.at("simulations").as_array()[1].at("nodes").as_integer() == 2);
  CHECK(document.at("simulations").as_array()[1].at("plan").at("bytes").as_array().size() == 16);
  const std::string plot = read_file(lines);
  CHECK(plot.rfind("model\tranks\tnodes\tmethod\t", 0) == 0);
  CHECK(std::count(plot.begin(), plot.end(), '\n') == 7);
}

TEST_CASE("the model of a configuration, with overrides") {
  const Ended ended = plan("--config configs/bench_gpt2_124m.json --ranks 4 --only-planner");
  INFO(ended.output);
  CHECK(ended.exit_code == 0);
  CHECK(ended.output.find("72 matrices") != std::string::npos);
  const Ended chosen = plan(
      "--config configs/bench_gpt2_124m.json --set distribution.planner=round_robin --set distribution.stage=3 --ranks 2 --only-planner");
  CHECK(chosen.output.find("stage 3, planner round_robin") != std::string::npos);
  const Ended overridden = plan(
      "--config configs/bench_gpt2_124m.json --set distribution.planner=round_robin --planner rank0 --stage 1 --ranks 2 --only-planner");
  CHECK(overridden.output.find("stage 1, planner rank0") != std::string::npos);
  const Ended element_wise =
      plan("--config configs/bench_gpt2_124m.json --set optimizer.matrix.rule=adamw --ranks 3 --nodes 3 --only-planner");
  INFO(element_wise.output);
  CHECK(element_wise.exit_code == 0);
  CHECK(element_wise.output.find(" 0 matrices") != std::string::npos);
}

TEST_CASE("what cannot be accepted ends with exit code 2 and says why") {
  refused("", "give --config FILE or --inventory FILE");
  refused("--config configs/quickstart.json --inventory x.json", "excludes");
  refused("--inventory configs/hardware/cpu.json", "cpu.json: source");
  refused(gpt2 + "--hardware configs/inventories/pi0.json", "pi0.json: ranks_per_node");
  refused(gpt2 + "--ranks 0", "--ranks");
  refused(gpt2 + "--ranks 6 --nodes 4", "4 does not divide 6");
  refused(gpt2 + "--hardware configs/hardware/a800.json --ranks 12", "does not fill nodes of 8");
  refused(gpt2 + "--planner magic", "\"magic\" is not one of");
  refused(gpt2 + "--stage 4", "--stage");
  refused(gpt2 + "--tokens-per-rank 1 --adamw-step-milliseconds 1e6", "not both");
  refused(gpt2 + "--memory-limit-bytes 1000", "memory");
  refused(gpt2 + "--nonsense", "--nonsense");
  refused("--config configs/quickstart.json --set model.widht=3", "widht");
  const Ended missing = plan("--inventory nowhere.json");
  CHECK(missing.exit_code == 5);
  CHECK(missing.output.find("nowhere.json") != std::string::npos);
}

TEST_CASE("the commands of docs/scaling.md run") {
  TemporaryFolder folder;
  std::filesystem::create_directory_symlink(source_directory() + "/configs", folder.path / "configs");
  std::istringstream document(read_file(source_directory() + "/docs/scaling.md"));
  const std::string prefix = "build/release/dmuon_plan ";
  int commands = 0;
  for (std::string line; std::getline(document, line);) {
    while (!line.empty() && line.back() == '\\') {
      std::string next;
      REQUIRE(std::getline(document, next));
      line = line.substr(0, line.size() - 1) + next;
    }
    if (line.rfind(prefix, 0) != 0) continue;
    const Ended ended = plan_in(folder.path, line.substr(prefix.size()));
    INFO(line << "\n" << ended.output);
    CHECK(ended.exit_code == 0);
    ++commands;
  }
  CHECK(commands >= 4);
}
