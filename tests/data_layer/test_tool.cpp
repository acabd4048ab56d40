// The functions behind dmuon_data and the program itself as a child process.
#include <sys/wait.h>

#include <cstdlib>

#include "data/inspect.h"
#include "data/tokenize.h"
#include "data_layer/files.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace dmuon;
using namespace dmuon::testing;
using Catch::Contains;

namespace {

struct Outcome {
  int exit_code;
  std::string output;  // both streams
};

// `before` is shell text such as "ulimit -v 100000;".
Outcome run_tool(const Directory& directory, const std::string& arguments, const std::string& before = "") {
  const std::string log = directory / "log";
  const int status = std::system(
      text("( ", before, " exec '", dmuon::testing::build_directory(), "/dmuon_data' ", arguments, " ) >", log, " 2>&1").c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(log)};
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TokenizeOptions from_to(const std::vector<std::string>& inputs, const std::string& output) {
  TokenizeOptions options;
  options.documents.inputs = inputs;
  options.output = output;
  return options;
}

// A stand-in for a large vocabulary: bytes, but announcing 70,000 ids.
class WideTokenizer : public Tokenizer {
 public:
  std::string_view name() const override { return "wide"; }
  int64_t vocabulary_size() const override { return 70'000; }
  void encode(std::string_view source, std::string_view, int64_t, std::vector<int32_t>& ids, SpecialTokens) const override {
    for (const char c : source) ids.push_back(69'900 + (c & 63));
  }
  size_t complete_prefix(std::string_view source, SpecialTokens) const override { return source.size(); }
  std::string decode_bytes(std::span<const int32_t>) const override { return {}; }
  Json to_json() const override { return Json::object(); }
};

}  // namespace

TEST_CASE("tokenized text reads back as the text") {
  Directory directory;
  const std::string first(2'000'000, 'e'), second = "h\xC3\xA9llo\nworld";
  const std::vector<std::string> inputs = {write(directory / "1.txt", first), write(directory / "2.txt", second)};
  const TokenizerHandle tokenizer = make_character_tokenizer_from_files(inputs);
  for (const TokenFormat format : {TokenFormat::llmc, TokenFormat::nanogpt}) {
    TokenizeOptions options = from_to(inputs, directory / text("out/", name_of(format)));
    options.format = format;
    options.shard_tokens = 700'000;
    std::vector<int64_t> progress;
    options.progress = [&](int64_t done, int64_t total) {
      CHECK(total == 2'000'012);
      progress.push_back(done);
    };
    const TokenizeResult result = tokenize_files(options, *tokenizer);
    CHECK(result.tokens == 2'000'011);
    REQUIRE(result.files.size() == 3);
    CHECK(std::is_sorted(progress.begin(), progress.end()));
    CHECK(progress.back() == 2'000'012);
    const std::vector<std::string> found = expand_files(std::vector{directory / text("out/", name_of(format), "_*.bin")}, "test");
    CHECK(found == result.files);
    const auto source = open_tokens(found, detect_format(found, "auto"), nullptr, tokenizer->vocabulary_size());
    CHECK(source->format() == format);
    std::vector<int32_t> ids(static_cast<size_t>(source->tokens()));
    source->read(0, ids);
    CHECK(read_tokenizer(result.manifest)->decode(ids) == first + second);
    CHECK(source->files()[0].tokens == 700'000);
    CHECK(source->files()[2].tokens == 600'011);
  }
  CHECK(names_in(directory / "out").size() == 8);
}

TEST_CASE("the writer chooses the width by the vocabulary and refuses ids that would wrap") {
  Directory directory;
  TokenizeOptions options = from_to({write(directory / "a.txt", "abc")}, directory / "wide");
  const TokenizeResult result = tokenize_files(options, WideTokenizer());
  CHECK(std::filesystem::file_size(result.files[0]) == 1024 + 3 * 4);
  const auto source = open_tokens(result.files, TokenFormat::llmc, nullptr, 70'000);
  std::vector<int32_t> ids(3);
  source->read(0, ids);
  CHECK(ids == std::vector<int32_t>{69'933, 69'934, 69'935});
  options.output = directory / "narrow";
  options.format = TokenFormat::nanogpt;
  CHECK_THROWS_WITH(tokenize_files(options, WideTokenizer()), Contains("70000 ids") && Contains("65536"));
  options.shard_tokens = 0;
  CHECK_THROWS_AS(tokenize_files(options, *make_byte_tokenizer()), ConfigError);
  options.format = TokenFormat::llmc;
  options.shard_tokens = int64_t{1} << 31;
  CHECK_THROWS_AS(tokenize_files(options, *make_byte_tokenizer()), ConfigError);
}

TEST_CASE("outputs appear whole or not at all, and replace only when told to") {
  Directory directory;
  std::filesystem::create_directory(directory / "out");
  const std::string input = write(directory / "a.txt", std::string(5000, 'a') + "\xff");
  TokenizeOptions options = from_to({input}, directory / "out/a");
  options.shard_tokens = 1000;
  CHECK_THROWS_WITH(tokenize_files(options, *make_character_tokenizer("a")), Contains("a.txt") && Contains("offset 5000"));
  CHECK(names_in(directory / "out").empty());
  const TokenizeResult result = tokenize_files(options, *make_byte_tokenizer());
  CHECK(result.files.size() == 6);
  CHECK(names_in(directory / "out").size() == 7);
  CHECK_THROWS_WITH(tokenize_files(options, *make_byte_tokenizer()), Contains("exists already") && Contains("--overwrite"));
  options.overwrite = true;
  options.shard_tokens = 4000;
  CHECK(tokenize_files(options, *make_byte_tokenizer()).files.size() == 2);
  CHECK(names_in(directory / "out") == std::vector<std::string>{"a.json", "a_000000.bin", "a_000001.bin"});
  CHECK_THROWS_AS(tokenize_files(from_to({write(directory / "empty.txt", "")}, directory / "out/b"), *make_byte_tokenizer()), DataError);
}

TEST_CASE("inspect tells what a file holds") {
  Directory directory;
  const std::string shard = write(directory / "a.bin", shard32({5, 100'000, 7}));
  const FileSummary summary = inspect_file(shard, "auto", nullptr);
  CHECK(summary.format == TokenFormat::llmc);
  CHECK(summary.tokens == 3);
  CHECK(summary.smallest == 5);
  CHECK(summary.largest == 100'000);
  CHECK(summary.first == std::vector<int32_t>{5, 100'000, 7});
  CHECK(summary.preview.empty());
  CHECK_THROWS_AS(inspect_file(shard, "auto", make_byte_tokenizer()), DataError);
  const FileSummary plain = inspect_file(write(directory / "a.txt", "h\xC3\xA9"), "auto", make_character_tokenizer("h\xC3\xA9"));
  CHECK(plain.tokens == 2);
  CHECK(plain.bytes == 3);
  CHECK(plain.preview == "h\xC3\xA9");
}

TEST_CASE("the program tokenizes, inspects, and ends with the right code") {
  Directory directory;
  const std::string input = write(directory / "a.txt", "hello world");
  Outcome outcome = run_tool(directory, text("tokenize ", input, " -o ", directory / "a"));
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.output, Contains("11 tokens") && Contains("vocabulary of 8") && Contains("a_000000.bin") && !Contains("\r"));
  outcome = run_tool(directory, text("inspect '", directory / "a_*.bin", "' --tokenizer ", directory / "a.json"));
  CHECK(outcome.exit_code == 0);
  CHECK_THAT(outcome.output, Contains("llmc") && Contains("1,046") && Contains("\"hello world\""));
  CHECK(run_tool(directory, "--help").exit_code == 0);
  CHECK_THAT(run_tool(directory, "--help").output, Contains("Examples"));
  CHECK(run_tool(directory, "tokenize --help").exit_code == 0);
  CHECK(run_tool(directory, "").exit_code == 2);
  CHECK(run_tool(directory, "tokenize").exit_code == 2);
  CHECK(run_tool(directory, text("tokenize ", input, " -o x --format parquet")).exit_code == 2);
  outcome = run_tool(directory, text("inspect ", directory / "missing.bin"));
  CHECK(outcome.exit_code == 2);
  CHECK_THAT(outcome.output, Contains("error: ") && Contains("missing.bin"));
  CHECK(run_tool(directory, text("inspect --tokenizer character ", directory / "a_000000.bin")).exit_code == 2);
}

TEST_CASE("inspect finds a shard that is not the one its manifest lists") {
  Directory directory;
  const TokenizeResult result =
      tokenize_files(from_to({write(directory / "a.txt", "hello world")}, directory / "a"), *make_byte_tokenizer());
  CHECK(inspect_file(result.files[0], "auto", nullptr).tokens == 11);
  std::string bytes = read_file(result.files[0]);
  bytes.back() ^= 1;  // of the same size, with an id that exists
  write(result.files[0], bytes);
  CHECK_THROWS_WITH(inspect_file(result.files[0], "auto", nullptr),
                    Contains("a_000000.bin") && Contains("lists the hash") && Contains("damaged"));
  write(result.manifest, "{\"files\": 7, \"tokenizer\": {}}");
  CHECK_THROWS_AS(inspect_file(result.files[0], "auto", nullptr), DataError);
  std::filesystem::remove(result.manifest);
  CHECK(inspect_file(result.files[0], "auto", nullptr).tokens == 11);
}

TEST_CASE("an interrupted run leaves nothing behind") {
  Directory directory;
  std::filesystem::create_directory(directory / "out");
  std::string words;
  for (uint64_t i = 0; i < 2'000'000; ++i) words += "w" + std::to_string(i * 0x9E3779B97F4A7C15u % 1'000'000'007) + " ";
  const std::string input = write(directory / "a.txt", words);
  const std::string log = directory / "log";
  const int status = std::system(text("timeout --preserve-status -s INT 0.4 '", dmuon::testing::build_directory(),
                                      "/dmuon_data' tokenize --threads 1 ", input, " --tokenizer ", source_directory(),
                                      "/tests/data_layer/fixtures/qwen -o ", directory / "out/a", " >", log, " 2>&1")
                                     .c_str());
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 0) {
    WARN("tokenized before it was interrupted: not checked");
    return;
  }
  CHECK(names_in(directory / "out").empty());
}

TEST_CASE("a disk that takes no more leaves nothing behind") {
  Directory directory;
  std::filesystem::create_directory(directory / "out");
  const std::string input = write(directory / "a.txt", std::string(100'000, 'a'));
  // Files may not grow beyond 64 KiB: what a full disk looks like to the program.
  const Outcome outcome = run_tool(directory, text("tokenize ", input, " -o ", directory / "out/a"), "trap '' XFSZ; ulimit -f 128;");
  CHECK(outcome.exit_code == 5);
  CHECK_THAT(outcome.output, Contains("cannot write") && Contains("a_000000.bin"));
  CHECK(names_in(directory / "out").empty());
}

TEST_CASE("tokenizing takes the same memory whatever the size of the text") {
  Directory directory;
  const std::string small = write(directory / "small.txt", "small text"), large = directory / "large.txt";
  std::ofstream out(large, std::ios::binary);
  const std::string line = std::string(4095, 'l');
  for (int i = 0; i < 1 << 14; ++i) out << line << "\n";
  out.close();
  REQUIRE(std::filesystem::file_size(large) == 64 << 20);
  // One thread and one arena: further threads would start, and reserve addresses of their own, or not, as the limit allows.
  const auto fits = [&](const std::string& input, int mebibytes) {
    const std::string arguments = text("tokenize --overwrite --threads 1 --format nanogpt ", input, " -o ", directory / "out");
    return run_tool(directory, arguments, text("export MALLOC_ARENA_MAX=1; ulimit -v ", mebibytes * 1024, ";")).exit_code == 0;
  };
  if (!fits(small, 4096)) {
    WARN("this build reserves more address space than can be limited (a sanitizer): not checked");
    return;
  }
  int enough = 16;
  while (!fits(small, enough)) enough += 16;
  CHECK(fits(large, enough + 24));  // far from the 64 MiB of the text
  // One document in one line of JSON.
  const std::string line_of_json = directory / "large.jsonl";
  std::ofstream json(line_of_json, std::ios::binary);
  json << "{\"text\": \"";
  for (int i = 0; i < 1 << 14; ++i) json << line << "\\n";
  json << "\"}\n";
  json.close();
  CHECK(fits(line_of_json + " --tokenizer byte", enough + 40));
}
