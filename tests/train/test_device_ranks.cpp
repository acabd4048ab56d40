// Whole runs of several ranks on devices, through NCCL: they train like the CPU, and end when a rank or NCCL fails.
#include "support/catch.h"
#include "train/vote_settings.h"

using namespace dmuon;
using dmuon::testing::Ended;
using dmuon::testing::SmallRun;

namespace {

// Which device the runs use; the plug-ins are the tests'.
const std::string cuda = "--set device=cuda ";
const std::string fewer = "--set training.steps=4 --set evaluation.interval=0 ";
const std::string plugins = text("DMUON_CUDA_PLUGIN=", DMUON_CUDA_ON_HOST, " DMUON_NCCL_PLUGIN=", DMUON_NCCL_ON_HOST, " ");

// The start measures nothing, and four ranks cut the units unevenly, so that they are published by broadcasts: the first sends are those of
// a gradient reduction, the first all-gather is that of the norm.
const std::string broadcasts = "--set distribution.publish_form=broadcasts ";

std::string set(const std::string& key, const std::string& value) { return text("--set 'distribution.", key, "=", value, "' "); }

std::vector<double> losses(const SmallRun& run, const std::string& output) {
  std::vector<double> out;
  const std::string metrics = run.metrics(output);
  for (size_t at = metrics.find("train_loss="); at != std::string::npos; at = metrics.find("train_loss=", at + 1))
    out.push_back(std::stod(metrics.substr(at + 11)));
  return out;
}

struct Way {
  std::string name;
  int ranks;
  std::string arguments;
};

}  // namespace

TEST_CASE("ranks on devices train to the losses of the CPU") {
  const SmallRun run;
  const std::vector<Way> ways = {
      {"stage1", 2, set("stage", "1")},
      {"stage2", 4, set("stage", "2")},
      {"stage3", 4, set("stage", "3")},
      {"grid", 4, set("nodes", "2") + set("stage", "3")},
      {"qwen", 2,
       "--set model.family=qwen --set model.dropout=0 --set model.key_value_heads=1 --set model.head_width=8 "
       "--set model.query_key_normalization=true " +
           set("stage", "3")},
      {"votes", 4, dmuon::testing::votes + set("nodes", "2") + dmuon::testing::transport("packed_scatter")},
  };
  for (const Way& way : ways) {
    const Ended expected = run.train(way.ranks, way.name + "_cpu", "--set device=cpu " + fewer + way.arguments);
    INFO(way.name << "\n" << expected.output);
    REQUIRE(expected.exit_code == 0);
    const Ended ended = run.train(way.ranks, way.name, cuda + fewer + way.arguments, plugins, 120);
    INFO(ended.output);
    REQUIRE(ended.exit_code == 0);
    const std::vector<double> there = losses(run, way.name + "_cpu"), here = losses(run, way.name);
    REQUIRE(there.size() == 4);
    REQUIRE(here.size() == 4);
    for (size_t step = 0; step < here.size(); ++step) CHECK(here[step] == Approx(there[step]).epsilon(1e-4));
  }
}

TEST_CASE("an NCCL error in a gradient reduction ends all ranks and is named") {
  const SmallRun run;
  const Ended ended = run.train(4, "error", cuda + fewer + broadcasts, plugins + "DMUON_NCCL_ON_HOST_FAULT=1:error:send");
  INFO(ended.output);
  CHECK(ended.exit_code == 4);
  CHECK(ended.output.find("reduce of ") != std::string::npos);
  CHECK(ended.output.find("on rank 1") != std::string::npos);
  CHECK(ended.output.find("unhandled system error (planned by a test)") != std::string::npos);
  CHECK(ended.seconds < 30);
}

TEST_CASE("an operation of a training step that never begins on one rank expires and is named") {
  const SmallRun run;
  // The host waits behind either of them where it reads the norm.
  const std::vector<std::pair<std::string, std::string>> faults = {{"send", "reduce of "}, {"all_gather", "gradient norm"}};
  for (const auto& [fault, label] : faults) {
    const Ended ended =
        run.train(4, "stopped_" + fault,
                  cuda + fewer + broadcasts + "--set communication.step_timeout_seconds=4 --set communication.start_timeout_seconds=20 ",
                  plugins + "DMUON_NCCL_ON_HOST_FAULT=1:stop:" + fault);
    INFO(ended.output);
    CHECK(ended.exit_code == 4);
    CHECK(ended.output.find(label) != std::string::npos);
    CHECK(ended.output.find("did not finish within 4") != std::string::npos);
    CHECK(ended.seconds < 30);
  }
}

TEST_CASE("plug-ins that are missing, or not of this build, or not of one build, are refused with the file and the remedy") {
  const SmallRun run;
  const std::string copy = run.path("copy.so");
  std::filesystem::copy_file(DMUON_CUDA_ON_HOST, copy);
  struct Pair {
    std::string cuda, nccl;
    std::vector<std::string> said;
  };
  std::vector<Pair> pairs = {
      {DMUON_CUDA_ON_HOST, "/no/nccl.so", {"/no/nccl.so, which is missing"}},
      {DMUON_CUDA_ON_HOST, DMUON_TEST_WRONG_VERSION, {DMUON_TEST_WRONG_VERSION, "plug-in version", "build both from the same sources"}},
      {DMUON_CUDA_ON_HOST, DMUON_TEST_WRONG_SIZE, {DMUON_TEST_WRONG_SIZE, "a table of"}},
      {DMUON_CUDA_ON_HOST, DMUON_TEST_WRONG_INTERFACE, {DMUON_TEST_WRONG_INTERFACE, "interface fedcba9876543210"}},
      {copy, DMUON_NCCL_ON_HOST, {DMUON_NCCL_ON_HOST, copy, "name files of one build"}}};
  // The real one, on the stand-in's device.
  if (const std::string real = DMUON_NCCL; !real.empty()) pairs.push_back({DMUON_CUDA_ON_HOST, real, {real, "name files of one build"}});
  for (const Pair& pair : pairs) {
    const Ended ended = run.train(2, "refused", cuda + fewer, text("DMUON_CUDA_PLUGIN=", pair.cuda, " DMUON_NCCL_PLUGIN=", pair.nccl));
    INFO(ended.output);
    CHECK(ended.exit_code == 6);
    for (const std::string& part : pair.said) CHECK(ended.output.find(part) != std::string::npos);
  }
}
