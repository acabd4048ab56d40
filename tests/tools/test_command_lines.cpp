// What all programs share: usage errors end with 2 and a message that a person can use, numbers are checked before work begins.
#include "dmuon/core/file.h"
#include "support/catch.h"
#include "support/mpi_launch.h"
#include "support/paths.h"
#include "train/command_line.h"

using namespace dmuon;
using Catch::Contains;
using dmuon::testing::Ended;
using dmuon::testing::run_command;

namespace {

Ended run(const std::string& command) { return run_command(command, 60); }

std::string refused(const std::string& command, int exit_code = 2) {
  const Ended ended = run(command);
  INFO(command << "\n" << ended.output);
  CHECK(ended.exit_code == exit_code);
  return ended.output;
}

const std::string models = dmuon::testing::source_directory() + "/tests/huggingface/fixtures/";

}  // namespace

TEST_CASE("every program has a version and a help, and a usage error ends with 2") {
  for (const char* tool :
       {DMUON_TRAIN, DMUON_GENERATE, DMUON_EVALUATE, DMUON_DATA, DMUON_PLAN, DMUON_CHECKPOINT, DMUON_CONFIG, DMUON_BENCH}) {
    INFO(tool);
    const Ended version = run(text(tool, " --version"));
    CHECK(version.exit_code == 0);
    CHECK_THAT(version.output, Contains("dmuon "));
    CHECK_THAT(refused(text(tool, " --no-such-option")), !Contains("terminate"));
  }
  CHECK_THAT(run(text(DMUON_GENERATE, " --help")).output, Contains("--no-cache") && !Contains("{false}"));
  CHECK_THAT(run(text(DMUON_DATA, " tokenize --help")).output, Contains("--threads"));
}

TEST_CASE("the benchmarks end as all programs do") {
  CHECK_THAT(refused(text(DMUON_BENCH, " gemm --threads 0")), Contains("--threads: expected an integer from 1") && Contains("\"0\""));
  refused(text(DMUON_BENCH, " no-such-benchmark"));
  refused(text(DMUON_BENCH, " memory --set a=b"));
  CHECK_THAT(refused(text(DMUON_BENCH, " load --gigabytes nan")), Contains("error: --gigabytes: expected a number from 0.01 to 1000"));
  CHECK_THAT(refused(text(DMUON_BENCH, " newton-schulz --small 1 --queues -1")), Contains("--queues: expected an integer"));
  CHECK_THAT(refused(text(DMUON_BENCH, " gemm --device gpu")), Contains("\"gpu\""));
  CHECK_THAT(refused(text(DMUON_BENCH, " gemm --json /no/such/folder/report.json"), 5), Contains("/no/such/folder"));
}

TEST_CASE("numbers of options are finite and in their range") {
  const std::string generate = text(DMUON_GENERATE, " --model ", models, "gpt2 ");
  CHECK_THAT(refused(generate + "--temperature nan"), Contains("--temperature: expected a number from 0 to 100, found \"nan\""));
  CHECK_THAT(refused(generate + "--top-p nan"), Contains("--top-p: expected a number from 0 to 1"));
  CHECK_THAT(refused(generate + "--repetition-penalty nan"), Contains("--repetition-penalty: expected a number from 0.01 to 100"));
  CHECK_THAT(refused(generate + "--seed -1"), Contains("--seed: expected an integer of at least 0, found \"-1\""));
  CHECK_THAT(refused(generate + "--top-k 99999999999999999999"), Contains("--top-k: expected an integer of at least 0"));
  CHECK_THAT(refused(generate + "--threads 1.5"), Contains("--threads: expected an integer from 0 to 4096"));
  const std::string plan = text(DMUON_PLAN, " votes ");
  CHECK_THAT(refused(plan + "--latency-microseconds nan"), Contains("expected a number of at least 0, found \"nan\""));
  CHECK_THAT(refused(plan + "--gigabits-per-second inf"), Contains("expected a number above 0, found \"inf\""));
  CHECK_THAT(refused(text(DMUON_DATA, " tokenize x -o y --threads 2000")), Contains("--threads: expected an integer from 0 to 1024"));
  CHECK_THAT(refused(text(DMUON_DATA, " tokenize x -o y --shard-tokens 0")), Contains("--shard-tokens: expected an integer of at least 1"));
  CHECK_THAT(refused(text(DMUON_CHECKPOINT, " export x --format huggingface --output y --shard-bytes 0")), Contains("--shard-bytes"));
}

TEST_CASE("what is read as a number") {
  CHECK(finite_number("1e3") == 1000.0);
  CHECK(finite_number("+0.5") == 0.5);
  for (const char* wrong : {"", "nan", "-inf", "infinity", "1e999", "1 ", " 1", "1x", "+-1", "0x10"}) {
    INFO(wrong);
    CHECK_FALSE(finite_number(wrong));
  }
  CHECK(whole_number("-9223372036854775808") == INT64_MIN);
  for (const char* wrong : {"", "9223372036854775808", "1.0", "1e3", "0x10"}) {
    INFO(wrong);
    CHECK_FALSE(whole_number(wrong));
  }
  std::string octal = "010";  // ten, to a person
  CHECK(integer_between(1, 10)(octal).empty());
  CHECK(octal == "10");
}

TEST_CASE("a file of results that cannot be written is found before the work") {
  const std::string evaluate = text(DMUON_EVALUATE, " --threads 1 --model /nowhere --data x --json ");
  CHECK_THAT(refused(evaluate + "/no/such/folder/report.json", 5), Contains("/no/such/folder"));
  CHECK_THAT(refused(evaluate + dmuon::testing::source_directory(), 5), Contains("folder"));
  CHECK_THAT(refused(text(DMUON_PLAN, " votes --json /no/such/folder/votes.json"), 5), Contains("/no/such/folder") && !Contains("fastest"));
  CHECK_THAT(refused(text(DMUON_PLAN, " --inventory /nowhere --plot /no/such/folder/plot.tsv"), 5), Contains("/no/such/folder"));
}

TEST_CASE("a device and its plug-in are what they are called") {
  const std::string generate = text(DMUON_GENERATE, " --threads 1 --model ", models, "gpt2 --prompt a ");
  CHECK_THAT(refused(generate + "--device foo"), Contains("\"foo\"") && Contains("cuda"));
  CHECK_THAT(refused(text("DMUON_CUDA_PLUGIN=" DMUON_REFERENCE " ", generate, "--device cuda"), 6),
             Contains("libdmuon_reference.so") && Contains("\"reference\""));
}

TEST_CASE("a tokenizer that is not there is said to be missing") {
  const std::string generate = text(DMUON_GENERATE, " --threads 1 --model ", models, "gpt2 --prompt a ");
  CHECK_THAT(refused(generate + "--tokenizer character"), Contains("character: no such file or folder") && !Contains("expected character"));
  CHECK_THAT(refused(generate), Contains("no tokenizer.json in it"));
  CHECK_THAT(refused(text(DMUON_DATA, " tokenize ", models, "../CMakeLists.txt -o /tmp/unused --tokenizer /nowhere")),
             Contains("/nowhere: no such file or folder"));
}

TEST_CASE("a place in a file of JSON lines is given once") {
  const std::string file = "command_lines.jsonl";
  write_file_atomically(file, "{\"prompt\": \"a\"}\n{\"prompt\" \"b\"}\n");
  const std::string evaluate = text(DMUON_EVALUATE, " --threads 1 --model ", models, "gpt2 --multiple-choice ", file);
  write_file_atomically(file, "{\"ctx\": \"a\", \"endings\": [\"b\", \"c\"], \"label\": 0}\n{\"ctx\" 3}\n");
  CHECK_THAT(refused(evaluate), Contains(file + ":2:8: not valid JSON"));
  write_file_atomically(file, "{\"ctx\": 1, \"ctx\": 2}\n");
  CHECK_THAT(refused(evaluate), Contains(file + ":1: duplicate key"));
}
