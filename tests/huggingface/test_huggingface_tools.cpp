// The commands of docs/huggingface.md, as a user runs them.
#include "dmuon/core/json.h"
#include "huggingface/huggingface_support.h"
#include "io/io_support.h"
#include "support/mpi_launch.h"

using namespace dmuon;
using namespace dmuon::test;
using dmuon::testing::Ended;
using dmuon::testing::run_command;
using dmuon::testing::run_ranks_of;

namespace {

Ended tool(const std::string& arguments) { return run_command(text(DMUON_CHECKPOINT_TOOL, " ", arguments), 60); }

}  // namespace

TEST_CASE("a run on one or two ranks starts from a directory, and its checkpoint is exported") {
  TemporaryDirectory directory;
  std::string words;
  for (int i = 0; i < 2000; ++i) words += text("word", i % 37, " ");
  write_bytes(directory / "corpus.txt", words);
  write_bytes(directory / "run.json",
              text(R"({"data": {"train": [")", (directory / "corpus.txt").string(), R"("], "tokenizer": "character"},
    "training": {"steps": 2, "batch_tokens": 512}, "sample": {"tokens": 0}, "logging": {"interval": 1}, "threads": 1})"));
  for (const char* name : {"gpt2", "qwen2", "qwen3"}) {
    INFO(name);
    const auto train = [&](int ranks) {
      const std::string output = (directory / text(name, ranks)).string();
      const std::string command = text(DMUON_TRAIN, " --config ", (directory / "run.json").string(),
                                       " --set model.from=", huggingface_fixture(name).string(), " --set output=", output);
      return ranks == 1 ? run_command(command, 60) : run_ranks_of(DMUON_MPIEXEC, ranks, command, 60);
    };
    const Ended one = train(1), two = train(2);
    INFO(one.output << two.output);
    CHECK(one.exit_code == 0);
    CHECK(two.exit_code == 0);
    const auto first_loss = [](const std::string& output) {
      const size_t at = output.find("| loss ");
      REQUIRE(at != std::string::npos);
      return std::stod(output.substr(at + 7));
    };
    CHECK(first_loss(one.output) == Approx(first_loss(two.output)).margin(2e-4));

    const std::string exported = (directory / text(name, "-hf")).string();
    const Ended done =
        tool(text("export ", (directory / text(name, 1)).string(), " --format huggingface --output ", exported, " --dtype bfloat16"));
    INFO(done.output);
    CHECK(done.exit_code == 0);
    CHECK(read_huggingface_config(exported, models()).settings == read_huggingface_config(huggingface_fixture(name), models()).settings);
    const Ended again = tool(text("export ", (directory / text(name, 1)).string(), " --format huggingface --output ", exported));
    CHECK(again.exit_code == 2);
    CHECK(contains(again.output, "never overwrites"));
  }
  const Ended refused = run_command(text(DMUON_TRAIN, " --config ", (directory / "run.json").string(),
                                         " --dry-run --set model.layers=3 --set model.from=", huggingface_fixture("gpt2").string()),
                                    60);
  CHECK(refused.exit_code == 2);
  CHECK(contains(refused.output, "model.layers = 3 (from --set): the model in"));
}

TEST_CASE("import makes a checkpoint that exports to the same values") {
  TemporaryDirectory directory;
  const Ended imported = tool(text("import ", huggingface_fixture("qwen2").string(), " --output ", (directory / "imported").string()));
  INFO(imported.output);
  CHECK(imported.exit_code == 0);
  CHECK(tool(text("verify ", (directory / "imported").string())).exit_code == 0);
  CHECK(tool(text("inspect ", (directory / "imported").string())).exit_code == 0);
  const std::string out = (directory / "out").string();
  const Ended exported =
      tool(text("export ", (directory / "imported").string(), " --format huggingface --output ", out, " --shard-bytes 30000"));
  INFO(exported.output);
  CHECK(exported.exit_code == 0);
  const HuggingFaceFiles theirs(huggingface_fixture("qwen2")), ours(out);
  CHECK(theirs.names().size() == ours.names().size());
  for (const std::string& name : theirs.names()) {
    REQUIRE(ours.find(name) != nullptr);
    CHECK(read_floats(*theirs.find(name)->file, name) == read_floats(*ours.find(name)->file, name));
  }
}

TEST_CASE("a tokenizer goes through training, resume, export and generation unchanged") {
  TemporaryDirectory directory;
  std::string words;
  for (int i = 0; i < 3000; ++i) words += text("It's wörd ", i % 37, ".\n");
  write_bytes(directory / "corpus.txt", words);
  for (const char* family : {"qwen", "gpt2"}) {
    INFO(family);
    const Path tokenizer = Path(DMUON_TOKENIZER_FIXTURES) / family;
    write_bytes(directory / "run.json",
                text(R"({"model": {"family": ")", family, R"(", "layers": 1, "heads": 2, "width": 16, "context_length": 32)",
                     std::string_view(family) == "gpt2" ? R"(, "activation": "gelu_tanh")" : "", R"(},
    "data": {"train": [")",
                     (directory / "corpus.txt").string(), R"("], "tokenizer": ")", tokenizer.string(), R"("},
    "training": {"batch_tokens": 128}, "sample": {"tokens": 0}, "threads": 1})"));
    const std::string run = (directory / text(family, "-run")).string(), out = (directory / text(family, "-out")).string();
    for (const int steps : {2, 3}) {  // the second continues the first
      const Ended trained = run_command(
          text(DMUON_TRAIN, " --config ", (directory / "run.json").string(), " --set training.steps=", steps, " --set output=", run), 60);
      INFO(trained.output);
      REQUIRE(trained.exit_code == 0);
    }
    const Ended exported = tool(text("export ", run, " --format huggingface --output ", out));
    INFO(exported.output);
    REQUIRE(exported.exit_code == 0);
    CHECK(read_file(Path(out) / "tokenizer.json") == read_file(tokenizer / "tokenizer.json"));
    const auto generate = [](const std::string& model) {
      const Ended ended =
          run_command(text(DMUON_GENERATE, " --model ", model, " --prompt \"It's wörd\" --tokens 8 --seed 3 --threads 1"), 60);
      INFO(ended.output);
      CHECK(ended.exit_code == 0);
      return ended.output.substr(0, ended.output.find("tokens"));  // the text; times follow
    };
    const std::string continued = generate(out);
    CHECK(contains(continued, "It's wörd"));
    CHECK(continued == generate(run));
    // Back again, the directory named as a user would, relative to where they stand.
    const std::string back = (directory / text(family, "-back")).string();
    const Ended imported = tool(text("import ", std::filesystem::relative(out).string(), " --output ", back));
    INFO(imported.output);
    REQUIRE(imported.exit_code == 0);
    CHECK(generate(back) == continued);
  }
}
