// What a run opens: split, tokenizer, fingerprint.
#include "data/tokenize.h"
#include "data_layer/files.h"
#include "dmuon/core/error.h"
#include "dmuon/data/token_data.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::testing;
using Catch::Contains;

namespace {

std::vector<int32_t> all_of(const TokenSource& source) {
  std::vector<int32_t> out(static_cast<size_t>(source.tokens()));
  source.read(0, out);
  return out;
}

TokenDataOptions training_on(std::vector<std::string> files) {
  TokenDataOptions options;
  options.training = std::move(files);
  return options;
}

}  // namespace

TEST_CASE("text trains on its head and validates on its tail") {
  Directory directory;
  const auto files = {write(directory / "a.txt", "abcdefghij"), write(directory / "b.txt", "klmno\xC3\xA9")};
  TokenDataOptions options = training_on(files);
  options.validation_fraction = 0.25;
  const TokenData data = open_token_data(options);
  CHECK(data.tokenizer->name() == "character");
  CHECK(data.tokenizer->vocabulary_size() == 16);
  CHECK(all_of(*data.training) == counting<int32_t>(12));
  CHECK(all_of(*data.validation) == counting<int32_t>(4, 12));
  options.validation_fraction = 0.0;
  const TokenData whole = open_token_data(options);
  CHECK(whole.validation == nullptr);
  CHECK(whole.training->tokens() == 16);
  options.tokenizer = "byte";
  CHECK(open_token_data(options).training->tokens() == 17);
  options.validation_fraction = 1.0;
  CHECK_THROWS_AS(open_token_data(options), ConfigError);
  options.validation_fraction = std::nan("");
  CHECK_THROWS_AS(open_token_data(options), ConfigError);
}

TEST_CASE("ids wider than a byte survive tokenizing into memory") {
  Directory directory;
  std::string many;
  for (int i = 0; i < 300; ++i) (many += static_cast<char>(0xC4 + i / 64)) += static_cast<char>(0x80 + i % 64);
  TokenDataOptions options = training_on({write(directory / "many.txt", many)});
  options.validation_fraction = 0.0;
  CHECK(all_of(*open_token_data(options).training) == counting<int32_t>(300));
}

TEST_CASE("separate validation files share tokenizer and format, never a file") {
  Directory directory;
  const std::string train = write(directory / "train.txt", "abcabc"), other = write(directory / "other.txt", "cab");
  TokenDataOptions options = training_on({train});
  options.validation = {other};
  const TokenData data = open_token_data(options);
  CHECK(all_of(*data.training) == std::vector<int32_t>{0, 1, 2, 0, 1, 2});
  CHECK(all_of(*data.validation) == std::vector<int32_t>{2, 0, 1});
  write(directory / "unknown.txt", "abd");
  options.validation = {directory / "unknown.txt"};
  CHECK_THROWS_WITH(open_token_data(options), Contains("unknown.txt") && Contains("U+0064") && Contains("offset 2"));
  std::filesystem::create_symlink(train, directory / "link.txt");
  options.validation = {directory / "link.txt"};
  CHECK_THROWS_WITH(open_token_data(options), Contains("link.txt") && Contains("also training data"));
  options.validation = {write(directory / "v.bin", raw(counting<uint16_t>(4)))};
  CHECK_THROWS_AS(open_token_data(options), DataError);
  options.training.clear();
  CHECK_THROWS_AS(open_token_data(options), DataError);
}

TEST_CASE("a tokenizer must fit the model and the data") {
  Directory directory;
  TokenDataOptions options = training_on({write(directory / "a.txt", "abcdefgh")});
  options.vocabulary_size = 7;
  CHECK_THROWS_WITH(open_token_data(options), Contains("8 ids") && Contains("vocabulary of 7"));
  options.vocabulary_size = 64;
  CHECK(open_token_data(options).tokenizer->vocabulary_size() == 8);
  // Resuming keeps the checkpoint's tokenizer, even where the text alone would give another one.
  const TokenData resumed = open_token_data(options, make_character_tokenizer("abcdefghZ"));
  CHECK(all_of(*resumed.training)[0] == 1);
  CHECK_THROWS_WITH(open_token_data(options, make_character_tokenizer("abc")), Contains("U+0064"));

  options = training_on({write(directory / "a.bin", shard16({5, 1, 2, 3, 4, 0}))});
  CHECK(open_token_data(options).tokenizer == nullptr);
  options.tokenizer = "character";  // means text
  CHECK(open_token_data(options).tokenizer == nullptr);
  options.tokenizer = write(directory / "t.json", R"({"type": "character", "characters": "abcde"})");
  const TokenData small = open_token_data(options);
  CHECK_THROWS_WITH(all_of(*small.training), Contains("a.bin") && Contains("id 5 at token 0") && Contains("vocabulary of 5"));
}

TEST_CASE("shards bring the tokenizer of their manifest") {
  Directory directory;
  const auto tokenize = [&](const std::string& prefix, const std::string& content) {
    TokenizeOptions options;
    options.documents.inputs = {write(directory / "text.txt", content)};
    options.output = directory / prefix;
    options.shard_tokens = 3;
    return tokenize_files(options, *make_character_tokenizer(content)).files;
  };
  const std::vector<std::string> shards = tokenize("a", "hello");
  TokenDataOptions options = training_on({directory / "a_*.bin"});
  options.validation_fraction = 0.0;
  const TokenData data = open_token_data(options);
  REQUIRE(data.tokenizer != nullptr);
  CHECK(data.tokenizer->decode(all_of(*data.training)) == "hello");
  options.vocabulary_size = 3;
  CHECK_THROWS_WITH(open_token_data(options), Contains("4 ids") && Contains("vocabulary of 3"));
  options.vocabulary_size = 0;
  options.tokenizer = "none";
  CHECK(open_token_data(options).tokenizer == nullptr);
  options.tokenizer = "byte";
  CHECK(open_token_data(options).tokenizer->name() == "character");
  tokenize("b", "help");
  options.validation = {directory / "b_*.bin"};
  CHECK_THROWS_WITH(open_token_data(options), Contains("b_000000.bin") && Contains("another tokenizer") && Contains("a_000000.bin"));
  options.validation.clear();
  write(shards[1], shard16({0}));
  CHECK_THROWS_WITH(open_token_data(options), Contains("a_000001.bin") && Contains("lists 1028 bytes, found 1026"));
  write(directory / "a.json", "{\"files\": 3, \"tokenizer\": {}}");
  CHECK_THROWS_AS(open_token_data(options), DataError);
  // A manifest that doesn't list a file says nothing about it.
  write(directory / "a.json", R"({"files": [], "tokenizer": {"type": "byte"}})");
  CHECK(open_token_data(options).tokenizer == nullptr);
}

TEST_CASE("a checkpoint recognises its data, and says what changed") {
  Directory directory;
  const std::string large(5 << 20, 'a');  // more than is hashed whole
  const auto fingerprint = [&](std::vector<std::string> files, double fraction = 0.1) {
    TokenDataOptions options = training_on(std::move(files));
    options.validation_fraction = fraction;
    options.tokenizer = "byte";
    return open_token_data(options).fingerprint;
  };
  const std::string a = write(directory / "a.txt", "some text"), b = write(directory / "b.txt", large);
  const Json saved = parse_json(fingerprint({a, b}).dump(), "checkpoint");
  CHECK_NOTHROW(require_same_data(saved, fingerprint({a, b})));
  std::filesystem::create_directory(directory / "moved");
  CHECK_NOTHROW(require_same_data(saved, fingerprint({write(directory / "moved/a", "some text"), write(directory / "moved/b", large)})));

  const auto difference = [&](const Json& now) {
    try {
      require_same_data(saved, now);
    } catch (const DataError& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  CHECK_THAT(difference(fingerprint({b, a})), Contains("file 1") && Contains("bytes was 9"));
  CHECK_THAT(difference(fingerprint({a})), Contains("number of files was 2, found 1") && Contains("b.txt"));
  CHECK_THAT(difference(fingerprint({a, b, write(directory / "c.txt", "c")})), Contains("was 2, found 3") && Contains("c.txt"));
  CHECK_THAT(difference(fingerprint({a, b}, 0.2)), Contains("training_tokens"));
  CHECK_THAT(difference(fingerprint({write(directory / "a2.txt", "some Text"), b})), Contains("a2.txt") && Contains("hash"));
  for (const size_t at : {size_t{0}, large.size() - 1}) {
    std::string changed = large;
    changed[at] = 'b';
    write(b, changed);
    CHECK_THAT(difference(fingerprint({a, b})), Contains("b.txt") && Contains("hash"));
  }
  write(b, large);
  TokenDataOptions options = training_on({a, b});
  CHECK_THAT(difference(open_token_data(options).fingerprint), Contains("tokenizer"));
  CHECK_THAT(difference(fingerprint({write(directory / "x.bin", shard16({1, 2, 3})), write(directory / "y.bin", shard16({1}))})),
             Contains("format"));
}
