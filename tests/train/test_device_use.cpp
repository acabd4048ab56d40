// dmuon_generate and dmuon_evaluate on a device beside the CPU, with models that dmuon_train has made on the CPU. The device is the one
// under test, or the reference backend where that is the CPU.
#include "support/catch.h"
#include "support/paths.h"
#include "support/test_device.h"
#include "train/run_support.h"

using namespace dmuon;
using dmuon::testing::Ended;
using dmuon::testing::run_command;
using dmuon::testing::SmallRun;

namespace {

std::string device() { return dmuon::testing::test_device_is_cuda() ? "cuda" : "reference"; }

const std::string gpt2, qwen =
                            "--set model.family=qwen --set model.heads=4 --set model.key_value_heads=2 --set model.head_width=8 --set "
                            "model.query_key_normalization=true --set model.dropout=0 ";

void train(const SmallRun& run, const std::string& output, const std::string& arguments) {
  // Long enough that the most likely token is ahead of the next one by more than rounding.
  const Ended ended = run.train(1, output, "--set device=cpu --set training.steps=60 --set evaluation.interval=0 " + arguments);
  INFO(ended.output);
  REQUIRE(ended.exit_code == 0);
}

Ended use(const char* program, const SmallRun& run, const std::string& model, const std::string& arguments) {
  Ended ended = run_command(text(program, " --threads 1 --model ", run.path(model), " ", arguments), 60);
  INFO(ended.output);
  REQUIRE(ended.exit_code == 0);
  return ended;
}

// The text of every prompt on both devices, greedily: short ones, several together, and one that goes on past the context of 16.
void check_texts(const SmallRun& run, const std::string& model, const std::string& options) {
  INFO(model << ": " << options);
  const std::string arguments = "--json --no-statistics --prompts " + run.path("prompts.txt") + " --temperature 0 " + options;
  const std::string expected = use(DMUON_GENERATE, run, model, arguments + " --device cpu").output;
  CHECK(dmuon::testing::count(expected, "\n") == 4);
  CHECK(use(DMUON_GENERATE, run, model, arguments + " --device " + device()).output == expected);
}

Json report(const SmallRun& run, const std::string& model, const std::string& on) {
  const std::string file = run.path(model + "_" + on + ".json");
  use(DMUON_EVALUATE, run, model,
      text("--no-progress --device ", on, " --data ", run.path("text.txt"), " --stride 5 --maximum-tokens 300 --multiple-choice ",
           run.path("questions.jsonl"), " --json ", file));
  return parse_json(read_file(file), "report");
}

}  // namespace

TEST_CASE("texts of a model on the device are those of the CPU, and so are loss and answers", "[device]") {
  const SmallRun run;
  run.write("prompts.txt", "word\nword1 wo\nw\nd12 word3 w\n");
  run.write("questions.jsonl",
            "{\"ctx\": \"word1 \", \"endings\": [\"word2\", \"....\"], \"label\": 0}\n"
            "{\"ctx\": \"w\", \"endings\": [\"word\", \"ord1\", \" 1d\"], \"label\": 1}\n");
  for (const auto& [name, arguments] : {std::pair{std::string("gpt2"), gpt2}, std::pair{std::string("qwen"), qwen}}) {
    train(run, name, arguments);
    check_texts(run, name, "--tokens 20");
    check_texts(run, name, "--tokens 5 --repetition-penalty 1.2 --batch-size 2");
    check_texts(run, name, "--tokens 4 --no-cache");

    const Json expected = report(run, name, "cpu"), found = report(run, name, device());
    INFO(name);
    const Json &text = found.at("text"), &text_of_cpu = expected.at("text");
    CHECK(text.at("tokens") == text_of_cpu.at("tokens"));
    CHECK(text.at("loss").as_number() == Approx(text_of_cpu.at("loss").as_number()).epsilon(1e-5));
    CHECK(found.at("multiple_choice").at("questions") == Json(2));
    CHECK(found.at("multiple_choice") == expected.at("multiple_choice"));
    if (dmuon::testing::test_device_is_cuda())
      CHECK(text.at("loss") != text_of_cpu.at("loss"));  // other kernels, other rounding: it did run there
  }
}

TEST_CASE("the quickstart on the device: train, stop, resume, generate", "[device]") {
  const SmallRun run;
  const std::string arguments = "--config " + text(dmuon::testing::source_directory(), "/configs/quickstart.json") +
                                " --set device=" + device() + " --set 'data.train=[\"" + run.path("text.txt") +
                                "\"]' --set threads=1 --set model.layers=1 --set model.width=16 " +
                                "--set model.heads=2 --set model.context_length=16 --set training.batch_tokens=32 --set training.steps=4 " +
                                "--set evaluation.interval=0 --set checkpoint.interval=2 --set sample.tokens=0";
  const auto train = [&](const std::string& output, const std::string& more, const std::string& environment = "") {
    return run_command(text("env ", environment, " ", DMUON_TRAIN, " ", arguments, " --set output=", run.path(output), " ", more), 60);
  };
  const Ended whole = train("whole", "");
  INFO(whole.output);
  REQUIRE(whole.exit_code == 0);
  CHECK(train("parts", "", "DMUON_CRASH_AT=after_rename").exit_code != 0);
  const Ended resumed = train("parts", "--resume must");
  INFO(resumed.output);
  REQUIRE(resumed.exit_code == 0);
  CHECK(run.tensors("parts", 4) == run.tensors("whole", 4));
  const std::string prompt = "--prompt word --tokens 8 --temperature 0 --no-statistics --device " + device();
  CHECK(use(DMUON_GENERATE, run, "parts", prompt).output == use(DMUON_GENERATE, run, "whole", prompt).output);
}

TEST_CASE("a device that generation and evaluation do not know is refused by its name", "[device]") {
  const SmallRun run;
  const std::pair<const char*, std::string> programs[] = {{DMUON_GENERATE, "--prompt a"},
                                                          {DMUON_EVALUATE, "--data " + run.path("text.txt")}};
  for (const auto& [program, arguments] : programs) {
    const Ended ended = run_command(text(program, " ", arguments, " --model ", run.path("none"), " --device abacus"), 30);
    CHECK(ended.exit_code == static_cast<int>(ExitCode::bad_input));
    CHECK_THAT(ended.output, Catch::Contains("abacus") && Catch::Contains("cuda"));
  }
}
