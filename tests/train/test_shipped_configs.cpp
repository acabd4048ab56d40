// Every configuration that ships is planned by a dry run, with the published number of parameters; the small twins train.
#include <algorithm>
#include <filesystem>
#include <map>

#include "support/catch.h"
#include "support/paths.h"
#include "train/run_support.h"

using namespace dmuon;
using dmuon::testing::Ended;
using dmuon::testing::run_command;

namespace {

const std::string configs = dmuon::testing::source_directory() + "/configs/";

std::vector<std::string> shipped(const std::string& prefix) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(configs))
    if (entry.path().extension() == ".json" && entry.path().filename().string().starts_with(prefix))
      names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

// A dry run needs no data, but then the size of the vocabulary.
std::string dry_run(const std::string& name, const std::string& more) {
  const Json file = parse_json(read_file(configs + name + ".json"), name);
  const Json& model = file.at("model");
  std::string command =
      text(DMUON_TRAIN, " --config ", configs, name, ".json --set data.train=[] --set data.validation=[] --dry-run ", more);
  if (model.find("vocabulary_size") == nullptr) command += " --set model.vocabulary_size=256";
  return command;
}

}  // namespace

TEST_CASE("every shipped configuration is planned without data") {
  for (const std::string& name : shipped("")) {
    if (name.find("two_nodes") != std::string::npos) continue;  // for four ranks: test_bad_input
    const Ended ended = run_command(dry_run(name, ""), 60);
    INFO(name << "\n" << ended.output);
    CHECK(ended.exit_code == 0);
  }
}

TEST_CASE("configurations of published models have their numbers of parameters; a tied head counts once") {
  const std::map<std::string, std::string> published = {{"nanogpt_124m", "124,439,808"},
                                                        {"qwen2.5_0.5b", "494,032,768"},
                                                        {"qwen2.5_1.5b", "1,543,714,304"},
                                                        {"qwen2.5_7b", "7,615,616,512"},
                                                        {"qwen3_0.6b", "596,049,920"}};
  for (const auto& [name, parameters] : published)
    for (const std::string rule : {"muon", "adamw", "sign_muon"}) {
      const Ended ended = run_command(dry_run(name, "--set optimizer.matrix.rule=" + rule), 60);
      INFO(name << " with " << rule << "\n" << ended.output);
      CHECK(ended.exit_code == 0);
      CHECK(ended.output.find(parameters + " parameters") != std::string::npos);
      CHECK(ended.output.find(rule) != std::string::npos);
    }
}

TEST_CASE("the small twins train on two ranks, with other rules by one key") {
  const dmuon::testing::SmallRun run;  // for its text
  for (const std::string& name : shipped("smoke_"))
    for (const std::string rule : {"muon", "adamw", "sign_muon"}) {
      if (rule != "muon" && name.find("char") == std::string::npos && name.find("qwen3") == std::string::npos) continue;
      const std::string output = run.path(name + "_" + rule);
      const Ended ended =
          dmuon::testing::run_ranks_of(DMUON_MPIEXEC, 2,
                                       text(DMUON_TRAIN, " --config ", configs, name, ".json --set data.train=", run.path("text.txt"),
                                            " --set threads=1 --set output=", output, " --set optimizer.matrix.rule=", rule),
                                       60);
      INFO(name << " with " << rule << "\n" << ended.output);
      REQUIRE(ended.exit_code == 0);
      CHECK(run.metrics(name + "_" + rule).find("step=8 ") != std::string::npos);
    }
}

TEST_CASE("Qwen trains to the same losses whatever the ranks and the stage") {
  const dmuon::testing::SmallRun run;
  const auto losses = [&](int ranks, const std::string& output, const std::string& more) {
    const std::string command =
        text(DMUON_TRAIN, " --config ", configs, "smoke_qwen3_0.6b.json --set data.train=", run.path("text.txt"),
             " --set distribution.compute_dtype=float32 --set distribution.cut_elements=64 --set threads=1 --set output=", run.path(output),
             " ", more);
    const Ended ended = ranks == 1 ? run_command(command, 60) : dmuon::testing::run_ranks_of(DMUON_MPIEXEC, ranks, command, 60);
    INFO(ended.output);
    REQUIRE(ended.exit_code == 0);
    std::vector<double> out;
    const std::string metrics = run.metrics(output);
    for (size_t at = metrics.find("train_loss="); at != std::string::npos; at = metrics.find("train_loss=", at + 1))
      out.push_back(std::stod(metrics.substr(at + 11)));
    REQUIRE(out.size() == 8);
    return out;
  };
  const std::vector<double> alone = losses(1, "alone", "");
  CHECK(alone.back() < alone.front());
  for (int stage = 1; stage <= 3; ++stage) {
    const std::vector<double> shared = losses(2, text("stage", stage), text("--set distribution.stage=", stage));
    for (size_t i = 0; i < alone.size(); ++i) CHECK(shared[i] == Approx(alone[i]).epsilon(1e-5));
  }
}
