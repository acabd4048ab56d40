// Runs every command of docs/data.md, in the order of its last section's needs: those that tokenize first, then the others.
#include <filesystem>

#include "data_layer/files.h"
#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "support/catch.h"
#include "support/mpi_launch.h"
#include "support/paths.h"

using namespace dmuon;
using namespace dmuon::testing;
using Catch::Contains;

namespace {

namespace fs = std::filesystem;

// The lines of the page's blocks of sh.
std::vector<std::string> commands_of(const std::string& page) {
  std::vector<std::string> commands;
  bool inside = false;
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```"))
      inside = line == "```sh";
    else if (inside)
      commands.push_back(line);
  }
  return commands;
}

void prepare(const Directory& directory) {
  const std::string source = source_directory();
  for (const char* folder : {"data", "tokenizers", "build"}) fs::create_directory(directory / folder);
  fs::create_directory_symlink(build_directory(), directory / "build/release");
  fs::create_directory_symlink(source + "/configs", directory / "configs");
  for (const char* name : {"gpt2", "qwen"})
    fs::create_directory_symlink(source + "/tests/data_layer/fixtures/" + name, directory / (std::string("tokenizers/") + name));
  std::string plain, stories, lines;
  for (int i = 0; i < 400; ++i) {
    const std::string sentence = text("To be, or not to be: that is question ", i, ".\n");
    plain += sentence;
    stories += sentence + (i % 4 == 3 ? "<|endoftext|>\n" : "");
    lines += text("{\"id\": ", i, ", \"text\": \"Page ", i, " \\u00e9\\n", sentence.substr(0, sentence.size() - 1), "\"}\n");
  }
  write(directory / "data/tinyshakespeare.txt", plain);
  write(directory / "data/stories.txt", stories);
  write(directory / "data/web-1.jsonl", lines);
  write(directory / "data/web-2.jsonl", lines);
}

Json manifest(const std::string& file) { return parse_json(read_file(file), file); }

}  // namespace

TEST_CASE("the commands of docs/data.md do what the page says", "[unicode]") {
  Directory directory;
  prepare(directory);
  std::vector<std::string> commands = commands_of(read_file(source_directory() + "/docs/data.md"));
  REQUIRE(commands.size() >= 10);
  std::stable_partition(commands.begin(), commands.end(), [](const std::string& c) { return c.find("dmuon_data") != std::string::npos; });
  int trained = 0;
  for (const std::string& command : commands) {
    write(directory / "command.sh", text("cd '", directory / "", "' || exit 99\n", command, "\n"));
    const Ended ended = run_command(text("sh '", directory / "command.sh", "'"), 120);
    INFO(command << "\n" << ended.output);
    REQUIRE(ended.exit_code == 0);
    trained += command.find("dmuon_train") != std::string::npos;
  }
  CHECK(trained == 2);
  const Json web = manifest(directory / "data/web.json"), stories = manifest(directory / "data/stories.json");
  CHECK(web.at("documents").as_integer() == 800);
  CHECK(stories.at("documents").as_integer() == 100);
  CHECK(manifest(directory / "data/shakespeare.json").at("documents").as_integer() == 1);
  CHECK(manifest(directory / "data/characters.json").at("format").as_string() == "nanogpt");
  CHECK(manifest(directory / "data/stories-qwen.json").at("tokenizer_hash") == web.at("tokenizer_hash"));
  CHECK(read_file(directory / "data/stories-again_000000.bin") == read_file(directory / "data/stories_000000.bin"));
  CHECK(stories.at("tokenizer_hash") != web.at("tokenizer_hash"));
}
