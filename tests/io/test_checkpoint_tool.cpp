// dmuon_checkpoint as a user runs it: what it prints and how it exits.
#include <sys/wait.h>

#include <cstdio>

#include "dmuon/io/checkpoint_report.h"
#include "io/checkpoint_support.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

struct Outcome {
  int exit_code = -1;
  std::string output;  // both streams
};

Outcome tool(const std::string& arguments) {
  Outcome outcome;
  FILE* pipe = popen(text(DMUON_CHECKPOINT_TOOL, " ", arguments, " 2>&1").c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, pipe)) outcome.output.append(buffer, count);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

}  // namespace

TEST_CASE("inspect shows step, tokens, parameters, rules, files and tensors of the newest checkpoint") {
  TemporaryDirectory directory;
  save_checkpoint(directory / "checkpoints", 7);
  save_checkpoint(directory / "checkpoints", 1234);
  for (const Path& path : {directory.path(), directory / "checkpoints", directory / "checkpoints/step-00001234"}) {
    const Outcome outcome = tool(text("inspect ", path.string()));
    INFO(outcome.output);
    CHECK(outcome.exit_code == 0);
    CHECK(contains(outcome.output, "step             1,234"));
    CHECK(contains(outcome.output, "tokens           123,400"));
    CHECK(contains(outcome.output, "parameters       99 in 3 tensors"));  // 13*7 + 5 + 3
    CHECK(contains(outcome.output, "first_moment: 1 tensors; "));
    CHECK(contains(outcome.output, "momentum: 1 tensors"));
    CHECK(contains(outcome.output, "no state: 1 tensors"));
    CHECK(contains(outcome.output, "run1, 2 ranks"));
    CHECK(contains(outcome.output, "model-00002-of-00002.safetensors"));
    CHECK(contains(outcome.output, "block.0.weight#momentum"));
    CHECK(contains(outcome.output, "[13, 7]"));
  }
}

TEST_CASE("verify says OK, or exits with 2 and names file and tensor") {
  TemporaryDirectory directory;
  save_checkpoint(directory.path(), 1);
  const Path path = save_checkpoint(directory.path(), 2);
  const Outcome whole = tool(text("verify ", directory.path().string()));
  CHECK(whole.exit_code == 0);
  CHECK(contains(whole.output, text("OK ", path.string(), ": 6 files, 6 tensors")));

  const SafetensorsReader file(path / "optimizer-00001.safetensors");
  flip_byte(file.path(), file.at("bias#local@1").offset + 2);
  const Outcome damaged = tool(text("verify ", directory.path().string()));  // the newest, not a silent fallback to step 1
  CHECK(damaged.exit_code == 2);
  CHECK(contains(damaged.output, file.path().string()));
  CHECK(contains(damaged.output, "\"bias#local@1\""));

  std::filesystem::remove(path / "MANIFEST.json");
  CHECK(tool(text("verify ", path.string())).exit_code == 2);
  CHECK(tool(text("inspect ", directory.path().string())).exit_code == 2);
  CHECK(contains(tool(text("list ", directory.path().string())).output, "unusable: "));
}

TEST_CASE("list shows every checkpoint; nothing there and wrong usage exit with 2") {
  TemporaryDirectory directory;
  for (const int64_t step : {5, 10}) save_checkpoint(directory / "checkpoints", step);
  const Outcome outcome = tool(text("list ", directory.path().string()));
  CHECK(outcome.exit_code == 0);
  CHECK(contains(outcome.output, "step-00000005"));
  CHECK(contains(outcome.output, "step-00000010"));
  CHECK(contains(outcome.output, "complete"));
  CHECK(tool(text("list ", (directory / "absent").string())).exit_code == 2);
  CHECK(tool(text("verify ", (directory / "absent").string())).exit_code == 2);
  std::filesystem::create_directories(directory / "empty");
  CHECK(contains(tool(text("list ", (directory / "empty").string())).output, "no checkpoint in"));
  CHECK(tool("").exit_code == 2);
  CHECK(tool("verify").exit_code == 2);
  CHECK(tool("--help").exit_code == 0);
}
