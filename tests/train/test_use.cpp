// dmuon_generate and dmuon_evaluate on a model that dmuon_train has made.
#include "support/catch.h"
#include "support/paths.h"
#include "train/run_support.h"

using namespace dmuon;
using Catch::Contains;
using dmuon::testing::Ended;
using dmuon::testing::run_command;
using dmuon::testing::SmallRun;

namespace {

struct Trained : SmallRun {
  Trained() {
    const Ended ended = train(1, "o");
    INFO(ended.output);
    REQUIRE(ended.exit_code == 0);
  }
  Ended generate(const std::string& arguments) const {
    return run_command(text(DMUON_GENERATE, " --threads 1 --model ", path("o"), " ", arguments), 30);
  }
  Ended evaluate(const std::string& arguments) const {
    return run_command(text(DMUON_EVALUATE, " --threads 1 --model ", path("o"), " ", arguments), 30);
  }
};

// "text" of every line of --json.
std::vector<Json> lines_of(const Ended& ended) {
  INFO(ended.output);
  REQUIRE(ended.exit_code == 0);
  std::vector<Json> lines;
  std::istringstream in(ended.output);
  for (std::string line; std::getline(in, line);) lines.push_back(parse_json(line, "output"));
  return lines;
}

}  // namespace

TEST_CASE("generation: streamed, as JSON, together, alone and without a cache") {
  const Trained run;
  run.write("prompts.txt", "word\nword1\n\nwo\n");
  run.write("prompts.jsonl", "{\"prompt\": \"word\"}\n{\"prompt\": \"word1\", \"other\": 1}\n{\"prompt\": \"wo\"}\n");
  const std::string options = " --no-statistics --seed 5 --tokens 9 --top-k 12 --top-p 0.9 --repetition-penalty 1.1 ";
  const std::vector<Json> together = lines_of(run.generate("--json --prompts " + run.path("prompts.txt") + options));
  REQUIRE(together.size() == 3);
  CHECK(together[1].at("prompt") == Json("word1"));
  CHECK(together[2].at("tokens") == Json(9));
  CHECK(together[2].at("ended_by") == Json("length"));
  for (const char* other : {" --batch-size 1", " --batch-size 2", " --no-cache"})
    CHECK(lines_of(run.generate("--json --prompts " + run.path("prompts.txt") + options + other)) == together);
  CHECK(lines_of(run.generate("--json --prompts " + run.path("prompts.jsonl") + options)) == together);
  const Json& first = together.front();
  const Ended streamed = run.generate("--prompt word" + options);
  CHECK(streamed.output == "word" + first.at("text").as_string() + "\n");
  CHECK(run.generate("--no-echo --prompt word" + options).output == first.at("text").as_string() + "\n");
  const std::string& whole = first.at("text").as_string();
  const std::string stop = whole.substr(3, 2);
  const Json stopped = lines_of(run.generate("--json --prompt word --stop '" + stop + "'" + options)).front();
  CHECK(stopped.at("text") == Json(whole.substr(0, whole.find(stop))));
  CHECK(stopped.at("ended_by") == Json("stop_string"));
  CHECK_THAT(run.generate("--prompt word --tokens 3").output, Contains("prompt: 4 tokens") && Contains("generation: 3 tokens"));
}

TEST_CASE("generation: what cannot be done is said") {
  const Trained run;
  const auto refused = [&](const std::string& arguments) {
    const Ended ended = run.generate(arguments);
    CHECK(ended.exit_code == 2);
    return ended.output;
  };
  CHECK_THAT(refused("--prompt 'word1 word2 word3 word4 '"), Contains("24 tokens") && Contains("16") && Contains("--truncate-prompt"));
  CHECK(run.generate("--prompt 'word1 word2 word3 word4 ' --truncate-prompt --tokens 30").exit_code == 0);
  CHECK(run.generate("--tokens 2").exit_code == 0);  // an empty prompt begins after a line
  CHECK_THAT(refused("--prompt word --stop ''"), Contains("stop string"));
  CHECK_THAT(refused("--prompt 'WORD'"), Contains("prompt"));
  CHECK_THAT(refused("--prompt a --prompts b"), Contains("--prompts"));
  run.write("bad.jsonl", "{\"prompt\": \"word\"}\n{\"text\": \"word\"}\n");
  CHECK_THAT(refused("--prompts " + run.path("bad.jsonl")), Contains("bad.jsonl:2") && Contains("prompt"));
  CHECK_THAT(refused("--prompt a --tokenizer " + run.path("none.json")), Contains("none.json"));
  CHECK_THAT(refused("--prompt a --tokenizer byte"), Contains("256"));
}

TEST_CASE("evaluation: a table, a report, and the loss of the training run") {
  const Trained run;
  const std::string words = read_file(run.path("text.txt"));
  run.write("questions.jsonl", "{\"ctx\": \"word1 \", \"endings\": [\"word2\", \"....\"], \"label\": 0}\n");
  const Ended ended = run.evaluate(
      text("--data ", run.path("text.txt"), " --multiple-choice ", run.path("questions.jsonl"), " --json ", run.path("report.json")));
  INFO(ended.output);
  REQUIRE(ended.exit_code == 0);
  CHECK_THAT(ended.output, Contains("perplexity") && Contains("bits per byte") && Contains("accuracy"));
  const Json report = parse_json(read_file(run.path("report.json")), "report");
  const double loss = report.at("text").at("loss").as_number();
  CHECK(report.at("text").at("perplexity").as_number() == Approx(std::exp(loss)));
  CHECK(report.at("text").at("bits_per_byte").as_number() == Approx(loss / std::log(2.0)));
  CHECK(report.at("multiple_choice").at("questions") == Json(1));
  // The last tenth of the text is what the run was evaluated on.
  run.write("last.txt", words.substr(words.size() - words.size() / 10));
  const Ended strided = run.evaluate("--data " + run.path("last.txt") + " --stride 4 --json " + run.path("strided.json"));
  REQUIRE(strided.exit_code == 0);
  CHECK(parse_json(read_file(run.path("strided.json")), "report").at("text").at("tokens") ==
        Json(static_cast<int64_t>(words.size() / 10 - 1)));
  CHECK(run.evaluate("").exit_code == 2);
  CHECK(run.evaluate("--data " + run.path("nothing.txt")).exit_code == 2);
}

TEST_CASE("a Hugging Face directory is evaluated and generates as a checkpoint does") {
  const SmallRun run;
  std::string ids;
  for (int i = 0; i < 200; ++i) ids += {static_cast<char>(i * 7 % 61), '\0'};
  run.write("ids.bin", ids);
  for (const char* family : {"gpt2", "qwen2", "qwen3"}) {
    const std::string model = text(dmuon::testing::source_directory(), "/tests/huggingface/fixtures/", family);
    const Ended ended = run_command(text(DMUON_EVALUATE, " --threads 1 --model ", model, " --data ", run.path("ids.bin"),
                                         " --length 16 --json ", run.path("report.json")),
                                    30);
    INFO(ended.output);
    REQUIRE(ended.exit_code == 0);
    CHECK(parse_json(read_file(run.path("report.json")), "report").at("text").at("loss").as_number() > 0.0);
    const Ended generated = run_command(text(DMUON_GENERATE, " --threads 1 --model ", model, " --prompt a"), 30);
    CHECK(generated.exit_code == 2);
    CHECK_THAT(generated.output, Contains("--tokenizer"));
  }
}
