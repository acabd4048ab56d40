// Documents from text and JSONL, cut anywhere and encoded on any number of threads: the ids are those of each document by itself.
#include "data/tokenize.h"

#include <algorithm>
#include <set>

#include "data/document_reader.h"
#include "data/ordered_work.h"
#include "data/token_writer.h"
#include "data/utf8.h"
#include "data_layer/files.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/random.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace dmuon;
using namespace dmuon::testing;
using Catch::Contains;

namespace {

TokenizerHandle fixture(const std::string& name) { return read_tokenizer(source_directory() + "/tests/data_layer/fixtures/" + name); }

// GPT-2's fixture with a pattern that has no scanner.
TokenizerHandle general_pattern() {
  const std::string file = source_directory() + "/tests/data_layer/fixtures/qwen/tokenizer.json";
  std::string content = read_file(file);
  const std::string from = R"(|\\p{N}|)";
  const size_t at = content.find(from);
  REQUIRE(at != std::string::npos);
  return make_huggingface_tokenizer({{"tokenizer.json", content.replace(at, from.size(), R"(|\\p{N}{1,2}|)")}}, "general");
}

// White space of all kinds, digits, contractions, marks that compose and reorder, Hangul in parts, emoji, whole and broken tokens.
std::string random_text(uint64_t seed, uint64_t length) {
  static const std::vector<std::string> parts = {" ",
                                                 " ",
                                                 " ",
                                                 "  ",
                                                 "\n",
                                                 "\n\n",
                                                 "\r\n",
                                                 "\r",
                                                 "\t",
                                                 "\v",
                                                 "\u00a0",
                                                 "\u3000",
                                                 "\u2028",
                                                 "\u0085",
                                                 "\u200b",
                                                 "a",
                                                 "b",
                                                 "The",
                                                 "word",
                                                 "ings",
                                                 "I",
                                                 "'",
                                                 "'s",
                                                 "'S",
                                                 "'ll",
                                                 "'LL",
                                                 "'re",
                                                 "'v",
                                                 "'\u017f",
                                                 "\u017f",
                                                 "n't",
                                                 "0",
                                                 "1",
                                                 "42",
                                                 "2026",
                                                 "3.14",
                                                 "\u0663\u0664",
                                                 "\u00bd",
                                                 "\u2167",
                                                 ".",
                                                 ",",
                                                 "!?",
                                                 "--",
                                                 "...",
                                                 "(",
                                                 ")",
                                                 "\"",
                                                 "_",
                                                 "#",
                                                 "\u3002",
                                                 "\uff0c",
                                                 "\u00e9",
                                                 "e\u0301",
                                                 "e\u0323\u0301",
                                                 "\u0301",
                                                 "\u0323\u0301",
                                                 "\u0345",
                                                 "\u0915\u093c",
                                                 "\u0958",
                                                 "\u1100\u1161\u11a8",
                                                 "\u1100",
                                                 "\u1161",
                                                 "\u11a8",
                                                 "\uac00",
                                                 "\u212b",
                                                 "\u2126",
                                                 "\u037e",
                                                 "\u4e2d\u6587",
                                                 "\u65e5",
                                                 "\u0e01\u0e33",
                                                 "\u05d0\u05b8",
                                                 "\U0001f642",
                                                 "\U0001f468\u200d\U0001f469",
                                                 "\u2764\ufe0f",
                                                 "<|endoftext|>",
                                                 "<|end",
                                                 "oftext|>",
                                                 "<",
                                                 "<|",
                                                 "|>",
                                                 "<|im_start|>",
                                                 "<tool",
                                                 "<tool_call>"};
  const Random random(seed, RandomStream::test);
  std::string out;
  for (uint64_t i = 0; i < length; ++i) out += parts[random.below(parts.size(), i, 0)];
  return out;
}

std::string json_escaped(const std::string& document, bool escapes) {
  Json object = Json::object();
  object.set("id", int64_t{7});
  object.set("text", document);
  std::string line = object.dump();
  if (escapes)
    for (size_t at = 0; (at = line.find("\u00e9", at)) != std::string::npos;) line.replace(at, 2, "\\u00e9");
  return line;
}

std::vector<int32_t> read_ids(const DocumentOptions& options, const Tokenizer& tokenizer, int64_t& documents) {
  std::vector<int32_t> ids;
  DocumentReader reader(options, tokenizer);
  JsonField field(options.jsonl_field);
  int64_t read = 0;
  for (TextBatch batch; reader.next(batch);) {
    for (const TextPiece& piece : batch.pieces) {
      std::string source = batch.bytes.substr(piece.begin, piece.size), decoded;
      if (piece.json) {
        field.begin();
        field.feed(source, decoded);
        field.finish();
        source = decoded;
      }
      if (source.empty()) continue;
      if (piece.begins_document) ids.push_back(-1), ++documents;
      tokenizer.encode(source, "text", 0, ids);
    }
    CHECK(batch.read_bytes >= read);
    read = batch.read_bytes;
  }
  return ids;
}

std::vector<int32_t> ids_of_documents(const std::vector<std::string>& documents, const Tokenizer& tokenizer) {
  std::vector<int32_t> ids;
  for (const std::string& document : documents) {
    if (document.empty()) continue;
    ids.push_back(-1);
    tokenizer.encode(document, "text", 0, ids);
  }
  return ids;
}

TokenizeOptions from_to(const std::vector<std::string>& inputs, const std::string& output) {
  TokenizeOptions options;
  options.documents.inputs = inputs;
  options.output = output;
  return options;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

std::string failure_of(const TokenizeOptions& options, const Tokenizer& tokenizer) {
  try {
    tokenize_files(options, tokenizer);
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a document cut into the smallest pieces has the ids of the whole", "[unicode]") {
  Directory directory;
  const std::vector<TokenizerHandle> tokenizers = {fixture("gpt2"), fixture("qwen"), general_pattern(), make_byte_tokenizer()};
  int64_t cuts = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const std::string document = random_text(seed, 1 + seed % 120);
    DocumentOptions options;
    options.inputs = {write(directory / "a.txt", document)};
    options.formats = {InputFormat::text};
    options.batch_bytes = 1 + seed % 13;
    for (const TokenizerHandle& tokenizer : tokenizers) {
      INFO("seed " << seed << ", " << tokenizer->hash() << ": " << document);
      int64_t documents = 0;
      const std::vector<int32_t> found = read_ids(options, *tokenizer, documents), expected = ids_of_documents({document}, *tokenizer);
      REQUIRE(found == expected);
      CHECK(documents == 1);
      DocumentReader reader(options, *tokenizer);
      for (TextBatch batch; tokenizer->name() == "bpe" && reader.next(batch);) cuts += std::ssize(batch.pieces);
    }
  }
  CHECK(cuts > 400 * 4);  // it was cut, or nothing was tested
}

TEST_CASE("numbers of one digit each can be cut anywhere, other runs nowhere", "[unicode]") {
  CHECK(fixture("qwen")->complete_prefix("31415926535") == 10);
  CHECK(fixture("gpt2")->complete_prefix("31415926535") == 0);
  CHECK(fixture("gpt2")->complete_prefix("one two") == 3);
  CHECK(fixture("qwen")->complete_prefix("one <|endoftext|") == 3);
  CHECK(fixture("qwen")->complete_prefix("word\u0301") == 0);
  CHECK(general_pattern()->complete_prefix("one two three") == 0);
}

TEST_CASE("lines of JSON and lines that separate give the documents, however the files are read", "[unicode]") {
  Directory directory;
  const std::string line = "<|endoftext|>";
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const Random random(seed, RandomStream::test);
    std::vector<std::string> documents;
    for (uint64_t i = 0; i < 1 + seed % 6; ++i) documents.push_back(random_text(1000 + 7 * seed + i, random.below(40, i, 3)));
    std::string json, separated;
    std::vector<std::string> in_text;
    for (size_t i = 0; i < documents.size(); ++i) {
      json += json_escaped(documents[i], seed % 2 == 0) + (i + 1 < documents.size() || seed % 3 == 0 ? "\n" : "");
      in_text.push_back(documents[i] + "\n");
      // What the text itself holds between its breaks must not read as the separator.
      if (("\n" + in_text.back()).find("\n" + line + "\n") != std::string::npos ||
          ("\n" + in_text.back()).find("\n" + line + "\r\n") != std::string::npos)
        in_text.back() = "replaced\n";
      separated += in_text.back() + line + (seed % 5 == 0 ? "\r\n" : i + 1 < documents.size() || seed % 2 == 0 ? "\n" : "");
    }
    DocumentOptions options;
    options.batch_bytes = 1 + random.below(30, 0, 4);
    options.longest_line = 1 + random.below(60, 0, 5);
    for (const TokenizerHandle& tokenizer : {fixture("gpt2"), fixture("qwen")}) {
      INFO("seed " << seed);
      int64_t count = 0;
      options.inputs = {write(directory / "a.jsonl", json)};
      options.formats = {InputFormat::jsonl};
      options.separator_line.clear();
      REQUIRE(read_ids(options, *tokenizer, count) == ids_of_documents(documents, *tokenizer));
      CHECK(count == std::count_if(documents.begin(), documents.end(), [](const std::string& d) { return !d.empty(); }));
      options.inputs = {write(directory / "a.txt", separated)};
      options.formats = {InputFormat::text};
      options.separator_line = line;
      count = 0;
      REQUIRE(read_ids(options, *tokenizer, count) == ids_of_documents(in_text, *tokenizer));
      CHECK(count == std::ssize(in_text));
    }
  }
}

TEST_CASE("the files are the same on any number of threads, and their manifest counts them", "[unicode]") {
  Directory directory;
  std::string json, plain;
  std::vector<std::string> documents;
  for (uint64_t i = 0; i < 400; ++i) {
    documents.push_back(random_text(i, i % 50 == 7 ? 0 : i % 90 == 3 ? 60'000 : 200));
    json += json_escaped(documents.back(), true) + "\n";
  }
  plain = random_text(12345, 250'000);
  const std::vector<std::string> inputs = {write(directory / "a.jsonl", json), write(directory / "b.txt", plain),
                                           write(directory / "c.txt", "")};
  const TokenizerHandle tokenizer = fixture("qwen");
  std::string first;
  for (const int threads : {1, 2, 3, 5}) {
    TokenizeOptions options = from_to(inputs, directory / text("out", threads, "/a"));
    options.shard_tokens = 150'000;
    options.threads = threads;
    int64_t last = 0;
    options.progress = [&](int64_t done, int64_t total) {
      CHECK(done >= last);
      CHECK(done <= total);
      last = done;
    };
    const TokenizeResult result = tokenize_files(options, *tokenizer);
    CHECK(last == std::ssize(json) + std::ssize(plain));
    CHECK(result.documents == 400 - 8 + 1);
    CHECK(result.empty_documents == 8 + 1);
    CHECK(result.separated);
    std::string all;
    for (const std::string& name : names_in(directory / text("out", threads)))
      all += name + read_file(directory / text("out", threads, "/", name));
    if (threads == 1) first = all;
    CHECK(all == first);
    const Json manifest = parse_json(read_file(result.manifest), "manifest");
    CHECK(manifest.at("documents").as_integer() == result.documents);
    CHECK(manifest.at("document_separator").as_integer() == *tokenizer->end_of_text());
    CHECK(manifest.at("tokenizer_hash").as_string() == tokenizer->hash());
    int64_t bytes = std::ssize(plain);
    for (const std::string& document : documents) bytes += std::ssize(document);
    CHECK(manifest.at("text_bytes").as_integer() == bytes);
    REQUIRE(result.files.size() > 2);
    for (size_t i = 0; i < result.files.size(); ++i)
      CHECK(manifest.at("files").as_array()[i].at("hash").as_string() == file_hash(result.files[i]));
    if (threads > 1) continue;
    documents.push_back(plain);
    std::vector<int32_t> expected = ids_of_documents(documents, *tokenizer), found(static_cast<size_t>(result.tokens));
    documents.pop_back();
    std::replace(expected.begin(), expected.end(), -1, *tokenizer->end_of_text());
    open_tokens(result.files, TokenFormat::llmc, nullptr, tokenizer->vocabulary_size())->read(0, found);
    CHECK(found == expected);
  }
}

TEST_CASE("separators are those that were asked for", "[unicode]") {
  Directory directory;
  const std::vector<std::string> inputs = {write(directory / "a.txt", "one"), write(directory / "b.txt", "two")};
  const TokenizerHandle tokenizer = fixture("gpt2");
  const auto tokens = [&](DocumentSeparator separator) {
    TokenizeOptions options = from_to(inputs, directory / "out");
    options.separator = separator;
    options.overwrite = true;
    const TokenizeResult result = tokenize_files(options, *tokenizer);
    std::vector<int32_t> ids(static_cast<size_t>(result.tokens));
    open_tokens(result.files, TokenFormat::llmc, nullptr, tokenizer->vocabulary_size())->read(0, ids);
    return tokenizer->decode(ids);
  };
  CHECK(tokens(DocumentSeparator::automatic) == "<|endoftext|>one<|endoftext|>two");
  CHECK(tokens(DocumentSeparator::end_of_text) == "<|endoftext|>one<|endoftext|>two");
  CHECK(tokens(DocumentSeparator::none) == "onetwo");
  TokenizeOptions options = from_to(inputs, directory / "bytes");
  CHECK(tokenize_files(options, *make_byte_tokenizer()).tokens == 6);
  options.separator = DocumentSeparator::end_of_text;
  CHECK_THAT(failure_of(options, *make_byte_tokenizer()), Contains("no end-of-text token") && Contains("--document-separator none"));
}

TEST_CASE("the first bad line or byte is named, on any number of threads, and nothing is left", "[unicode]") {
  Directory directory;
  std::filesystem::create_directory(directory / "out");
  std::string good;
  for (int i = 0; i < 3000; ++i) good += "{\"text\": \"some words of a document that is good\", \"n\": " + std::to_string(i) + "}\n";
  const TokenizerHandle tokenizer = fixture("gpt2");
  const auto refusal = [&](const std::string& name, const std::string& content, const std::string& field = "text") {
    std::set<std::string> messages;
    for (const int threads : {1, 2, 5}) {
      TokenizeOptions options = from_to({write(directory / name, content)}, directory / "out/a");
      options.threads = threads;
      options.shard_tokens = 1000;
      options.documents.jsonl_field = field;
      options.documents.batch_bytes = 4096;
      options.documents.longest_line = 8192;
      messages.insert(failure_of(options, *tokenizer));
      CHECK(names_in(directory / "out").empty());
    }
    REQUIRE(messages.size() == 1);
    return *messages.begin();
  };
  CHECK_THAT(refusal("a.jsonl", good + "{\"text\": 7}\n" + good + "{\"text\"\n"),
             Contains("a.jsonl: line 3001, byte 9: the field \"text\" is not a string") && Contains("--jsonl-field"));
  CHECK_THAT(refusal("a.jsonl", good + "\n" + good), Contains("line 3001") && Contains("the line is empty"));
  CHECK_THAT(refusal("a.jsonl", good, "body"), Contains("line 1,") && Contains("no field \"body\""));
  CHECK_THAT(refusal("a.jsonl", good + "{\"text\": \"\xff\"}\n"), Contains("line 3001") && Contains(text("offset ", good.size() + 10)));
  const std::string words(20'000, 'w');
  CHECK_THAT(refusal("a.jsonl", good + "{\"text\": \"" + words + "\n" + good), Contains("line 3001") && Contains("ends inside"));
  CHECK_THAT(refusal("a.jsonl", good + "{\"text\": \"" + words + "\\q\"}\n" + good),
             Contains("line 3001, byte 20011") && Contains("after a backslash"));
  CHECK_THAT(refusal("a.jsonl", good + "{\"text\": \"" + words + "\xc3\"}\n"),
             Contains("line 3001") && Contains(text("offset ", good.size() + 20'010)));
  // The reader fails at the long line before the short one above it is encoded: the first of the file is named all the same.
  CHECK_THAT(refusal("a.jsonl", "{\"text\": 7}\n{\"text\": \"" + words + "\\q\"}\n"), Contains("line 1, byte 9"));
  std::string prose;
  for (int i = 0; i < 20'000; ++i) prose += "word ";
  CHECK_THAT(refusal("a.txt", prose + "\xff" + prose + "\xfe"), Contains("a.txt: not valid UTF-8 at byte offset 100000"));
  CHECK_THAT(refusal("a.txt", prose + "\xe4\xb8"), Contains("offset 100000") && Contains("cut off by the end"));
  CHECK_THAT(refusal("a.txt", ""), Contains("no text to tokenize"));
  CHECK_THAT(refusal("a.txt", std::string(5'000'000, 'a')),
             Contains("byte offset 0") && Contains("without a place") && Contains("--separator-line"));
  CHECK(refusal("a.jsonl", good.substr(0, 60)) != "accepted");
}

TEST_CASE("an error while text is read, encoded or written ends the work after what precedes it") {
  struct Number {
    int value = 0;
  };
  for (const int threads : {1, 2, 3, 5})
    for (const int stage : {0, 1, 2, 3}) {
      int next = 0, taken = 0;
      OrderedWork<Number> work(
          threads, 7,
          [&](Number& job) {
            if (stage == 0 && next == 50) throw DataError("produce");
            job.value = next++;
            return job.value < 100;
          },
          [&](Number& job) {
            if (stage == 1 && job.value >= 50) throw DataError(text("work ", job.value));
            job.value *= 2;
          },
          [&](Number& job) {
            CHECK(job.value == 2 * taken);
            ++taken;
            if (stage == 2 && taken == 50) throw DataError("consume");
          });
      if (stage == 3) {
        work.run();
        CHECK(taken == 100);
        continue;
      }
      CHECK_THROWS_WITH(work.run(), stage == 0 ? "produce" : stage == 1 ? "work 50" : "consume");
      CHECK(taken == 50);
    }
}

TEST_CASE("no work is added while what is held weighs too much") {
  for (const int threads : {1, 3}) {
    int next = 0, held = 0, most = 0;
    OrderedWork<int> work(
        threads, 100,
        [&](int& job) {
          job = next++;
          most = std::max(most, ++held);
          return job < 50;
        },
        [](int&) {}, [&](int&) { --held; }, 10, [](const int& job) { return job < 25 ? size_t{5} : size_t{1000}; });
    work.run();
    CHECK(next == 51);
    CHECK(most <= 2);  // two of weight 5, then one of 1000
  }
}
