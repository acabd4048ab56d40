// Checkpoints of runs on devices: to the bit they go on where they were, on any other number of devices and on the CPU.
#include "support/catch.h"
#include "train/device_settings.h"

using namespace dmuon;
using namespace dmuon::testing;

namespace {

const std::string quiet = "--set evaluation.interval=0 --set model.layers=1 ";

// The hash of all parameters that a resumed run prints.
std::string resumed_hash(const std::string& output) {
  const size_t at = output.find("parameters ", output.find("resumed step"));
  return at == std::string::npos ? "" : output.substr(at + 11, 16);
}

}  // namespace

TEST_CASE("a run on devices that was interrupted ends with the bits of one that was not, with and without overlap") {
  const SmallRun run;
  const std::string arguments = cuda + quiet + "--set training.steps=6 --set training.micro_batch_size=1 " + distribution("stage", "3");
  REQUIRE(run.train(2, "whole", arguments, plugins, 120).exit_code == 0);
  CHECK(run.train(2, "parts", arguments, plugins + "DMUON_CRASH_AT=after_rename", 120).exit_code != 0);
  const Ended resumed = run.train(2, "parts", arguments + "--resume must", plugins, 120);
  INFO(resumed.output);
  REQUIRE(resumed.exit_code == 0);
  CHECK(run.tensors("parts", 6) == run.tensors("whole", 6));
  CHECK(run.metrics("parts") == run.metrics("whole"));
  REQUIRE(run.train(2, "waiting", arguments + distribution("overlap", "false"), plugins, 120).exit_code == 0);
  CHECK(run.tensors("waiting", 6) == run.tensors("whole", 6));
  CHECK(run.metrics("waiting") == run.metrics("whole"));
}

TEST_CASE("a checkpoint of devices or of the CPU resumes on any number of either, bit for bit") {
  const SmallRun run;
  struct Way {
    std::string name;
    int ranks;
    std::string arguments;
  };
  const std::vector<Way> ways = {
      {"gather", 2, cuda + distribution("method", "gather")},
      {"grid", 4, cuda + distribution("nodes", "2") + distribution("stage", "3")},
      {"cpu", 2, "--set device=cpu "},
  };
  for (const Way& writer : ways) {
    const Ended written = run.train(writer.ranks, writer.name, fewer + quiet + writer.arguments, plugins, 120);
    INFO(writer.name << "\n" << written.output);
    REQUIRE(written.exit_code == 0);
    std::string hash;
    for (const Way& reader : ways) {
      const Ended resumed = run.train(reader.ranks, text(writer.name, "-", reader.name),
                                      text(fewer, quiet, reader.arguments, "--resume ", run.path(writer.name)), plugins, 120);
      INFO(reader.name << "\n" << resumed.output);
      REQUIRE(resumed.exit_code == 0);
      const std::string found = resumed_hash(resumed.output);
      REQUIRE(found.size() == 16);
      CHECK((hash.empty() || hash == found));
      hash = found;
    }
  }
}

TEST_CASE("votes on devices are resumed to the bit") {
  const SmallRun run;
  const std::string arguments = cuda + quiet + "--set training.steps=6 --set optimizer.matrix.rule=sign_muon " +
                                "--set optimizer.matrix.learning_rate=0.002 " + distribution("replicas", "2");
  REQUIRE(run.train(2, "whole", arguments, plugins, 120).exit_code == 0);
  CHECK(run.train(2, "parts", arguments, plugins + "DMUON_CRASH_AT=after_rename", 120).exit_code != 0);
  REQUIRE(run.train(2, "parts", arguments + "--resume must", plugins, 120).exit_code == 0);
  CHECK(run.tensors("parts", 6) == run.tensors("whole", 6));
}
