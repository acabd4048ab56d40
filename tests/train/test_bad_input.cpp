// Every bad input has its error: exit code, what is named, what is suggested.
#include <algorithm>

#include "support/catch.h"
#include "support/paths.h"
#include "train/run_support.h"

using namespace dmuon;
using dmuon::testing::Ended;
using dmuon::testing::SmallRun;

namespace {

void check_refused(const Ended& ended, int code, const std::vector<std::string>& named) {
  INFO(ended.output);
  CHECK(ended.exit_code == code);
  for (const std::string& part : named) {
    INFO("expected to be named: " << part);
    CHECK(ended.output.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("configuration") {
  const SmallRun run;
  check_refused(run.train(1, "o", "--set optimizer.matrix.learning_rat=0.1"), 2, {"learning_rat", "learning_rate"});
  check_refused(run.train(1, "o", "--set training.steps=many"), 2, {"training.steps", "integer"});
  check_refused(run.train(1, "o", "--set training.steps=-3"), 2, {"training.steps", "-3"});
  check_refused(run.train(1, "o", "--set model.heads=5"), 2, {"model.heads", "model.width"});
  check_refused(run.train(1, "o", "--set model.family=gpt3"), 2, {"gpt3", "gpt2"});
  check_refused(run.train(1, "o", "--set device=cuda"), 6, {"cuda"});
  check_refused(run.train(1, "o", R"(--set 'optimizer.overrides=[{"match":"blocks.9.*","rule":"adamw"}]')"), 2, {"blocks.9.*"});
  check_refused(run.train(1, "o", R"(--set 'optimizer.overrides=[{"match":"final_norm.weight","rule":"muon"}]')"), 2,
                {"final_norm.weight"});
  check_refused(dmuon::testing::run_command(text(DMUON_TRAIN, " --config ", run.path("none.json")), 20), 5, {"none.json"});
  run.write("broken.json", "{\"name\": \"x\",}");
  check_refused(dmuon::testing::run_command(text(DMUON_TRAIN, " --config ", run.path("broken.json")), 20), 2, {"broken.json:1:"});
  check_refused(dmuon::testing::run_command(text(DMUON_TRAIN, " --confg x"), 20), 2, {"--config"});
}

TEST_CASE("a dry run needs no data, allocates nothing, and plans for ranks that are not there") {
  const std::string command =
      text(DMUON_TRAIN, " --config ", dmuon::testing::source_directory(),
           "/configs/bench_gpt2_124m.json --set model.context_length=1024 --set training.batch_tokens=8192 --dry-run");
  check_refused(dmuon::testing::run_command(command, 30), 0,
                {"124,439,808 parameters", "Newton-Schulz calls per step: 72", "optimizer_state"});
  check_refused(dmuon::testing::run_command(command + " --ranks 64", 60), 0, {"64 ranks = 1 replica x 64 shards", "lower bound"});
}

TEST_CASE("a run that does not fit is refused before it takes memory, and its dry run says so") {
  const SmallRun run;
  // The limit guards the machine that runs the test, should the refusal fail. A program under the address sanitizer does not even start
  // within it.
  if (dmuon::testing::run_command(text("bash -c 'ulimit -v 8000000; exec ", DMUON_TRAIN, " --version'"), 30).exit_code != 0) {
    WARN("not run: this build does not start within 8 GB of addresses");
    return;
  }
  const std::string command = text("bash -c \"ulimit -v 8000000; ", DMUON_TRAIN, " --config ", run.path("run.json"),
                                   " --set output=", run.path("o"), " --set model.width=16777216 --set threads=1");
  check_refused(dmuon::testing::run_command(command + "\"", 30), 6,
                {"out of memory before the start", "PB for one rank", "(the limit of addresses of a process, ulimit -v)", "optimizer_state",
                 "remedy: more ranks"});
  check_refused(dmuon::testing::run_command(command + " --dry-run\"", 30), 0,
                {"does not fit: ", " PB needed by one rank", "remedy: more ranks"});
  check_refused(dmuon::testing::run_command(command + " --set model.width=24 --dry-run\"", 30), 0, {"fits: "});
  // Every rank of a job refuses.
  run.write("rank.sh", "ulimit -v 8000000\nexec \"$@\"\n");
  check_refused(dmuon::testing::run_ranks_of(DMUON_MPIEXEC, 2,
                                             text("bash ", run.path("rank.sh"), " ", DMUON_TRAIN, " --config ", run.path("run.json"),
                                                  " --set output=", run.path("o"), " --set model.width=16777216 --set threads=1"),
                                             30),
                6, {"out of memory before the start", "predicted for rank"});
}

TEST_CASE("--ranks belongs to --dry-run") {
  const SmallRun run;
  check_refused(run.train(1, "o", "--ranks 4"), 2, {"--ranks", "--dry-run", "mpirun -np 4"});
}

TEST_CASE("the example of two nodes is planned for its four ranks") {
  const std::string command = text(DMUON_TRAIN, " --config ", dmuon::testing::source_directory(),
                                   "/configs/dmuon_two_nodes.json --set data.train=[] --set model.vocabulary_size=256 --dry-run --ranks 4");
  check_refused(dmuon::testing::run_command(command, 30), 0,
                {"4 ranks = 2 replicas x 2 shards on 2 nodes", "4 units of stage 3", "bfloat16", "to others"});
}

TEST_CASE("data") {
  const SmallRun run;
  const auto with_data = [&](const std::string& file, const std::string& more = "") {
    return run.train(1, "o", "--set data.train=" + run.path(file) + " " + more);
  };
  check_refused(with_data("missing.txt"), 2, {"missing.txt"});
  run.write("empty.txt", "");
  check_refused(with_data("empty.txt"), 2, {"empty.txt"});
  run.write("short.txt", "ten chars.");
  check_refused(with_data("short.txt"), 2, {"16"});
  run.write("latin1.txt", std::string(500, 'a') + "\xe9t\xe9" + std::string(500, 'b'));
  check_refused(with_data("latin1.txt"), 2, {"latin1.txt", "UTF-8", "500"});
  run.write("foreign.bin", std::string(2048, '\7'));
  check_refused(with_data("foreign.bin", "--set data.format=llmc --set model.vocabulary_size=50"), 2, {"foreign.bin", "20240520"});
  std::string tokens(4000, '\0');
  for (size_t i = 0; i < tokens.size(); i += 2) tokens[i] = static_cast<char>(i / 2 % 60);
  run.write("tokens.bin", tokens);
  check_refused(with_data("tokens.bin", "--set data.format=nanogpt --set model.vocabulary_size=50"), 2, {"tokens.bin", "50"});
  check_refused(with_data("tokens.bin", "--set data.format=nanogpt"), 2, {"model.vocabulary_size"});
}

TEST_CASE("a token id that only one rank reads ends the whole job with its text") {
  const SmallRun run;
  std::string tokens(60000, '\0');
  for (size_t i = 0; i < tokens.size(); i += 2) tokens[i] = static_cast<char>(i / 2 % 50);
  tokens[20000] = 77;
  run.write("tokens.bin", tokens);
  const Ended ended =
      run.train(3, "o",
                text("--set data.format=nanogpt --set model.vocabulary_size=50 --set training.steps=100000 --set data.train=",
                     run.path("tokens.bin")));
  check_refused(ended, 2, {"tokens.bin", "77", "50", "20000", "rank "});
  CHECK(ended.seconds < 10 + 15);
}

TEST_CASE("a prompt that cannot be encoded is refused before training") {
  const SmallRun run;
  check_refused(run.train(1, "o", "--set sample.tokens=5 --set sample.prompt=~"), 2, {"sample.prompt", "U+007E"});
  // An empty prompt begins as a document does, as in dmuon_generate.
  check_refused(run.train(1, "o", "--set sample.tokens=5 --set sample.prompt= --set training.steps=1"), 0, {"--- sample 1 after step 1"});
}

TEST_CASE("output that cannot be written") {
  const SmallRun run;
  run.write("file", "not a directory");
  check_refused(run.train(1, "file/below"), 5, {"file/below"});
}

TEST_CASE("a full disk leaves the last checkpoint intact") {
  const SmallRun run;
  REQUIRE(run.train(1, "full").exit_code == 0);
  // The next saves hit the file size limit; SIGXFSZ is ignored, so that writes fail with an error as on a full disk.
  const Ended ended =
      dmuon::testing::run_command(text("bash -c 'trap \"\" XFSZ; ulimit -f 20; exec ", DMUON_TRAIN, " --config ", run.path("run.json"),
                                       " --set output=", run.path("full"), " --set threads=1 --set training.steps=40'"),
                                  60);
  check_refused(ended, 5, {"cannot write", "step-000000", ".tmp-", ".safetensors"});
  check_refused(dmuon::testing::run_command(text(DMUON_CHECKPOINT, " verify ", run.path("full"), "/checkpoints"), 30), 0, {});
  const Ended resumed = run.train(1, "full", "--set training.steps=40");
  INFO(resumed.output);
  CHECK(resumed.exit_code == 0);
}

TEST_CASE("checkpoints that do not fit or are damaged") {
  const SmallRun run;
  REQUIRE(run.train(1, "run").exit_code == 0);
  check_refused(run.train(1, "run", "--set model.width=32 --set training.steps=20"), 2, {"model.width", "24", "32"});
  check_refused(run.train(1, "run", "--set seed=5 --set training.steps=20"), 2, {"seed"});
  check_refused(run.train(1, "run", "--set optimizer.matrix.momentum=0.5 --set training.steps=20"), 2, {"optimizer"});
  check_refused(run.train(1, "run", "--resume never"), 2, {"already holds checkpoints"});
  check_refused(run.train(1, "empty", "--resume must"), 2, {"no checkpoint"});
  std::string words = read_file(run.path("text.txt"));
  std::reverse(words.begin(), words.end());
  run.write("text.txt", words);
  check_refused(run.train(1, "run", "--set training.steps=20"), 2, {"text.txt"});
  run.write("text.txt", std::string(8000, '~'));
  check_refused(run.train(1, "run", "--set training.steps=20"), 2, {"text.txt", "U+007E"});
}

TEST_CASE("a damaged newest checkpoint is skipped with a word about it") {
  const SmallRun run;
  REQUIRE(run.train(1, "run").exit_code == 0);
  const std::string file = run.path("run") + "/checkpoints/step-00000012/optimizer-00000.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 7);
  const Ended ended = run.train(1, "run", "--set training.steps=14");
  INFO(ended.output);
  CHECK(ended.exit_code == 0);
  CHECK(ended.output.find("optimizer-00000.safetensors") != std::string::npos);
  CHECK(ended.output.find("resumed step 8") != std::string::npos);
}

TEST_CASE("ranks that were started differently") {
  const SmallRun run;
  const auto side = [&](const std::string& more) {
    return text("-np 1 ", DMUON_TRAIN, " --config ", run.path("run.json"), " --set output=", run.path("o"), " --set threads=1 ", more);
  };
  const Ended ended = dmuon::testing::run_command(
      text(DMUON_MPIEXEC, " --oversubscribe --bind-to none ", side(""), " : ", side("--set training.gradient_clip=0.5")), 60);
  check_refused(ended, 2, {"training.gradient_clip"});
  check_refused(dmuon::testing::run_command(text("env OMPI_COMM_WORLD_SIZE=2 PMI_SIZE=2 PMI_RANK=0 ", DMUON_TRAIN, " --config ",
                                                 run.path("run.json"), " --set output=", run.path("o")),
                                            60),
                4, {"2"});
}
