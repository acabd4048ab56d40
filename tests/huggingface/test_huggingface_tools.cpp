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

TEST_CASE("a run goes on without the directory that it started from") {
  TemporaryDirectory directory;
  std::string words;
  for (int i = 0; i < 2000; ++i) words += text("word", i % 37, " ");
  write_bytes(directory / "corpus.txt", words);
  const Path from = copy_of_fixture("qwen2", directory / "from");
  write_bytes(directory / "run.json", text(R"({"model": {"from": ")", from.string(), R"(", "context_length": 16}, "data": {"train": [")",
                                           (directory / "corpus.txt").string(), R"("], "tokenizer": "character"},
    "training": {"batch_tokens": 64}, "sample": {"tokens": 0}, "threads": 1, "output": ")",
                                           (directory / "run").string(), "\"}"));
  const auto train = [&](const std::string& more, int ranks = 1) {
    const std::string command = text(DMUON_TRAIN, " --config ", (directory / "run.json").string(), " ", more);
    return ranks == 1 ? run_command(command, 60) : run_ranks_of(DMUON_MPIEXEC, ranks, command, 60);
  };
  REQUIRE(train("--set training.steps=2").exit_code == 0);
  std::filesystem::remove_all(from);
  const Ended resumed = train("--set training.steps=4", 2);
  INFO(resumed.output);
  CHECK(resumed.exit_code == 0);
  CHECK(contains(resumed.output, "resumed step 2"));
  // A context that the run does not have is refused, by key, as it is while the directory is there.
  const Ended other = train("--set training.steps=5 --set model.context_length=8");
  CHECK(other.exit_code == 2);
  CHECK(contains(other.output, "model.context_length = 8"));
  for (const std::string& more :
       {std::string("--resume never"), text("--set output=", (directory / "other").string()), std::string("--set model.from=/elsewhere")}) {
    const Ended refused = train("--set training.steps=5 " + more);
    INFO(refused.output);
    CHECK(refused.exit_code != 0);
    CHECK(contains(refused.output, "config.json"));
  }
  const Ended elsewhere =
      train(text("--set training.steps=5 --set output=", (directory / "next").string(), " --resume ", (directory / "run").string()));
  INFO(elsewhere.output);
  CHECK(elsewhere.exit_code == 0);
  CHECK(contains(elsewhere.output, "resumed step 4"));
}

TEST_CASE("an export of a run on a shorter context says what the model was made for") {
  TemporaryDirectory directory;
  std::string words;
  for (int i = 0; i < 2000; ++i) words += text("word", i % 37, " ");
  write_bytes(directory / "corpus.txt", words);
  const auto train = [&](const char* fixture, const char* more) {
    return run_command(
        text(DMUON_TRAIN, " --set model.from=", huggingface_fixture(fixture).string(),
             " --set data.train=", (directory / "corpus.txt").string(),
             " --set data.tokenizer=character --set training.batch_tokens=64 --set training.steps=1 --set sample.tokens=0 --set threads=1",
             " --set output=", (directory / fixture).string(), " ", more, " --config ", (directory / "empty.json").string()),
        60);
  };
  write_bytes(directory / "empty.json", "{}");
  const Ended trained = train("qwen3", "--set model.context_length=16");
  INFO(trained.output);
  REQUIRE(trained.exit_code == 0);
  const std::string out = (directory / "out").string();
  REQUIRE(tool(text("export ", (directory / "qwen3").string(), " --format huggingface --output ", out)).exit_code == 0);
  const Json config = parse_json(read_file(Path(out) / "config.json"), "config.json");
  CHECK(config.at("max_position_embeddings").as_integer() == 64);
  CHECK(read_huggingface_config(out, models()).settings == read_huggingface_config(huggingface_fixture("qwen3"), models()).settings);
  const Ended other = train("qwen3", "--set model.context_length=16 --set model.maximum_positions=128");
  CHECK(other.exit_code == 2);
  CHECK(contains(other.output, "model.maximum_positions = 128"));
  // GPT-2's positions are a table: its length is the context.
  const Ended table = train("gpt2", "--set model.context_length=16");
  CHECK(table.exit_code == 2);
  CHECK(contains(table.output, "model.context_length = 16"));
}

TEST_CASE("files that one rank cannot read end all ranks with that rank's error") {
  TemporaryDirectory directory;
  std::string words;
  for (int i = 0; i < 2000; ++i) words += text("word", i % 37, " ");
  const Path good = directory / "good", bad = directory / "bad";
  for (const Path& each : {good, bad}) {
    std::filesystem::create_directory(each);
    copy_of_fixture("qwen2", each / "model");
    write_bytes(each / "corpus.txt", words);
    write_bytes(each / "run.json",
                R"({"model": {"from": "model", "context_length": 16}, "data": {"train": ["corpus.txt"], "tokenizer": "character"},
        "training": {"batch_tokens": 64, "steps": 1}, "sample": {"tokens": 0}, "threads": 1})");
  }
  // Ranks with directories of their own: the second sees other files under the same names.
  const auto train = [&] {
    const std::string rank = text(DMUON_TRAIN, " --config run.json --resume never --set output=", (directory / "run").string());
    std::filesystem::remove_all(directory / "run");
    return run_command(text(DMUON_MPIEXEC, " --oversubscribe --bind-to none -np 1 -wdir ", good.string(), " ", rank, " : -np 1 -wdir ",
                            bad.string(), " ", rank),
                       60);
  };
  const Path shard = bad / "model" / "model-00003-of-00004.safetensors";
  const std::string whole = read_file(shard);
  const auto refused = [&](int code, const std::string& message) {
    const Ended ended = train();
    INFO(ended.output);
    CHECK(ended.exit_code == code);
    CHECK(contains(ended.output, message));
    CHECK(contains(ended.output, "rank 1"));
    CHECK(ended.seconds < 20);
  };
  std::filesystem::remove(shard);
  refused(2, "shard model-00003-of-00004.safetensors is missing");
  write_bytes(shard, whole.substr(0, whole.size() - 4));
  refused(2, "model-00003-of-00004.safetensors");
  std::filesystem::remove(shard);
  std::filesystem::create_directory(shard);
  refused(2, "is not a regular file");
  std::filesystem::remove(shard);
  std::filesystem::create_symlink(shard, shard);  // ELOOP, for root too
  refused(5, "cannot read");
  std::filesystem::remove(bad / "model" / "config.json");
  refused(5, "config.json");
  write_bytes(bad / "model" / "config.json", read_file(good / "model" / "config.json"));
  std::filesystem::remove(shard);
  write_bytes(shard, whole);
  CHECK(train().exit_code == 0);
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

TEST_CASE("a tokenizer goes through training, resume, export and generation unchanged", "[unicode]") {
  TemporaryDirectory directory;
  std::string words;
  for (int i = 0; i < 3000; ++i) words += text("It's wörd ", i % 37, ".\n");
  write_bytes(directory / "corpus.txt", words);
  write_bytes(directory / "empty.json", "{}");
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
    // A run that starts from the directory takes its tokenizer, and goes on with it when the directory is gone.
    for (const int steps : {1, 2}) {
      const Ended next = run_command(text(DMUON_TRAIN, " --config ", (directory / "empty.json").string(), " --set model.from=", out,
                                          " --set data.train=", (directory / "corpus.txt").string(), " --set training.batch_tokens=128",
                                          " --set sample.tokens=0 --set threads=1 --set training.steps=", steps,
                                          " --set output=", (directory / text(family, "-next")).string()),
                                     60);
      INFO(next.output);
      CHECK(next.exit_code == 0);
      CHECK(contains(next.output, "resumed step 1") == (steps == 2));
      std::filesystem::remove_all(out);
    }
    generate((directory / text(family, "-next")).string());
  }
}
