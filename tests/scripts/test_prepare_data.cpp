// scripts/prepare_data.sh against a mirror of a few kilobytes: fetch, check, refuse, go on, decode, tokenize, train a step.
#include <filesystem>

#include "data/decode_documents.h"
#include "data_layer/files.h"
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "dmuon/data/token_source.h"
#include "dmuon/data/tokenizer.h"
#include "support/catch.h"
#include "support/mpi_launch.h"
#include "support/paths.h"

using namespace dmuon;
using namespace dmuon::testing;
using Catch::Contains;

namespace {

const std::string fixtures = DMUON_TOKENIZER_FIXTURES;

std::string document(int number) {
  std::string out;
  for (int i = 0; i < 60; ++i) out += text("Text ", number, ", line ", i, ": it's a größere Zeile, 你好 \"quoted\\\".\n");
  return out;
}

// What the public addresses hold, small: two files of FineWeb's tokens and one for validation, one archive of OpenWebText.
struct Mirror {
  Directory directory;
  std::vector<std::vector<std::string>> documents{{document(1), document(2)}, {document(3)}, {document(4), document(5), document(6)}};

  Mirror() {
    namespace fs = std::filesystem;
    fs::create_directory(directory / "mirror");
    for (const char* name : {"encoder.json", "vocab.bpe"}) fs::copy(fixtures + "/gpt2_files/" + name, directory / "mirror");
    fs::copy(fixtures + "/qwen/tokenizer.json", directory / "mirror");
    const TokenizerHandle gpt2 = read_tokenizer(fixtures + "/gpt2_files");
    const char* names[] = {"fineweb_val_000000.bin", "fineweb_train_000001.bin", "fineweb_train_000002.bin"};
    for (size_t i = 0; i < documents.size(); ++i) {
      std::vector<uint16_t> ids;
      for (const std::string& each : documents[i]) {
        ids.push_back(static_cast<uint16_t>(*gpt2->end_of_text()));
        for (const int32_t id : gpt2->encode(each)) ids.push_back(static_cast<uint16_t>(id));
      }
      write(directory / text("mirror/", names[i]), shard16(ids));
    }
    for (int i = 0; i < 12; ++i) {  // archives in an archive
      const std::string inner = directory / text("owt/openwebtext/urlsf_subset00-", 10 + i, "_data");
      fs::create_directories(inner);
      for (int k = 0; k < 3; ++k) write(text(inner, "/", k, ".txt"), document(10 * i + k));
      REQUIRE(
          run_command(text("sh -c 'cd ", inner, " && tar -cJf ../$(basename ", inner, ").xz *.txt && rm -r ", inner, "'"), 20).exit_code ==
          0);
    }
    REQUIRE(
        run_command(text("tar -cf ", directory / "mirror/urlsf_subset00.tar", " -C ", directory / "owt", " openwebtext"), 20).exit_code ==
        0);
    sum();
  }
  void sum() const { REQUIRE(run_command(text("sh -c 'cd ", directory / "mirror", " && sha256sum *.* >SHA256SUMS'"), 20).exit_code == 0); }
  Ended prepare(const std::string& arguments) const {
    return run_command(text("env DMUON_DATA_TOOL=", DMUON_DATA, " bash ", source_directory(), "/scripts/prepare_data.sh ", arguments,
                            " --downloads ", directory / "downloads", " --threads 1"),
                       60);
  }
  std::string here() const { return " --mirror file://" + (directory / "mirror"); }
};

std::vector<int32_t> ids_of(const std::string& pattern) {
  const std::vector<std::string> patterns = {pattern};
  const TokenSourceHandle source = open_tokens(expand_files(patterns, "test"), TokenFormat::llmc, nullptr, 0);
  std::vector<int32_t> ids(static_cast<size_t>(source->tokens()));
  source->read(0, ids);
  return ids;
}

std::vector<int32_t> expected_ids(const Tokenizer& tokenizer, const std::vector<std::vector<std::string>>& documents) {
  std::vector<int32_t> ids;
  for (const auto& file : documents)
    for (const std::string& each : file) {
      ids.push_back(*tokenizer.end_of_text());
      const std::vector<int32_t> more = tokenizer.encode(each);
      ids.insert(ids.end(), more.begin(), more.end());
    }
  return ids;
}

void train_a_step(const Mirror& mirror, const std::string& config, const std::string& data, int64_t vocabulary) {
  const Ended ended = run_command(
      text(DMUON_TRAIN, " --config ", source_directory(), "/configs/", config, " --set data.train=", data,
           "/train_*.bin --set data.validation=", data,
           "/validation_*.bin --set data.validation_fraction=0 --set data.format=llmc --set data.tokenizer=none --set sample.tokens=0",
           " --set model.vocabulary_size=", vocabulary, " --set training.steps=1 --set threads=1 --set output=", mirror.directory / config),
      60);
  INFO(ended.output);
  CHECK(ended.exit_code == 0);
}

}  // namespace

TEST_CASE("FineWeb's tokens are fetched, checked, kept, and used as they are or tokenized again") {
  const Mirror mirror;
  const std::string out = mirror.directory / "fineweb_gpt2", one = out + "/train_000001.bin";
  const Ended done = mirror.prepare("fineweb --shards 2 --out " + out + mirror.here());
  INFO(done.output);
  REQUIRE(done.exit_code == 0);
  CHECK_THAT(done.output, Contains("fetched and checked (sha256)") && Contains("ready: "));
  const TokenizerHandle gpt2 = read_tokenizer(fixtures + "/gpt2_files"), qwen = read_tokenizer(fixtures + "/qwen");
  CHECK((ids_of(out + "/train_*.bin") == expected_ids(*gpt2, {mirror.documents[1], mirror.documents[2]})));
  CHECK((ids_of(out + "/validation_*.bin") == expected_ids(*gpt2, {mirror.documents[0]})));
  train_a_step(mirror, "smoke_nanogpt_124m.json", out, gpt2->vocabulary_size());

  // Nothing is fetched again: the mirror's files may be gone.
  std::filesystem::remove(mirror.directory / "mirror/fineweb_train_000001.bin");
  const Ended kept = mirror.prepare("fineweb --shards 2 --out " + out + mirror.here());
  CHECK(kept.exit_code == 0);
  CHECK_THAT(kept.output, !Contains("fetched"));

  const std::string other = mirror.directory / "fineweb_qwen";
  const Ended again = mirror.prepare("fineweb --tokenizer qwen --shards 2 --out " + other + mirror.here());
  INFO(again.output);
  REQUIRE(again.exit_code == 0);
  CHECK((ids_of(other + "/train_*.bin") == expected_ids(*qwen, {mirror.documents[1], mirror.documents[2]})));
  CHECK((ids_of(other + "/validation_*.bin") == expected_ids(*qwen, {mirror.documents[0]})));
  train_a_step(mirror, "smoke_qwen2.5_0.5b.json", other, qwen->vocabulary_size());
  const auto written = std::filesystem::last_write_time(other + "/train_000001_000000.bin");
  CHECK(mirror.prepare("fineweb --tokenizer qwen --shards 2 --out " + other + mirror.here()).exit_code == 0);
  CHECK(std::filesystem::last_write_time(other + "/train_000001_000000.bin") == written);
}

TEST_CASE("documents that a file of tokens cuts keep their whole characters") {
  const Directory directory;
  const TokenizerHandle tokenizer = read_tokenizer(fixtures + "/gpt2_files");
  const auto bytes = [&](std::string_view source) {  // one id a byte
    std::vector<uint16_t> ids;
    for (const char c : source) {
      const std::string one(1, c);
      for (int32_t id = 0; id < tokenizer->vocabulary_size(); ++id)
        if (tokenizer->decode_bytes(std::vector<int32_t>{id}) == one) {
          ids.push_back(static_cast<uint16_t>(id));
          break;
        }
    }
    REQUIRE(ids.size() == source.size());
    return ids;
  };
  const auto separator = static_cast<uint16_t>(*tokenizer->end_of_text());
  std::vector<uint16_t> ids = bytes("\xbd\xa0 rest");  // the end of a three-byte character
  for (const std::string_view each : {"", "whole \"quoted\" 你\n", "\xff not UTF-8", "cut \xe4\xbd"}) {
    ids.push_back(separator);
    const std::vector<uint16_t> more = bytes(each);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  write(directory / "a.bin", shard16(ids));
  const std::vector<std::string> files = {directory / "a.bin"};
  const TokenSourceHandle source = open_tokens(files, TokenFormat::llmc, nullptr, 0);
  const DecodedDocuments done = decode_documents(*source, *tokenizer, directory / "a.jsonl");
  CHECK(done.documents == 4);
  CHECK(done.repaired == 1);
  CHECK(done.tokens == static_cast<int64_t>(ids.size()) - 4);
  CHECK(read_file(directory / "a.jsonl") == R"({"text":" rest"})"
                                            "\n"
                                            R"({"text":"whole \"quoted\" 你\n"})"
                                            "\n"
                                            "{\"text\":\"\uFFFD not UTF-8\"}\n"
                                            R"({"text":"cut "})"
                                            "\n");
  CHECK_THROWS_AS(decode_documents(*source, *make_byte_tokenizer(), directory / "b.jsonl"), DataError);
  CHECK_FALSE(std::filesystem::exists(directory / "b.jsonl"));
}

TEST_CASE("OpenWebText's archives become documents") {
  const Mirror mirror;
  const std::string out = mirror.directory / "owt_gpt2";
  const Ended done = mirror.prepare("openwebtext --out " + out + mirror.here());
  INFO(done.output);
  REQUIRE(done.exit_code == 0);
  const TokenizerHandle gpt2 = read_tokenizer(fixtures + "/gpt2_files");
  std::vector<std::vector<std::string>> held_out, rest;
  for (int i = 0; i < 12; ++i) (i < 8 ? held_out : rest).push_back({document(10 * i), document(10 * i + 1), document(10 * i + 2)});
  CHECK((ids_of(out + "/validation_*.bin") == expected_ids(*gpt2, held_out)));
  CHECK((ids_of(out + "/train_*.bin") == expected_ids(*gpt2, rest)));
  CHECK(std::distance(std::filesystem::directory_iterator(out), {}) == 6);  // two files of tokens, two manifests, the lock, the tokenizer
  const Ended other = mirror.prepare("openwebtext --tokenizer " + fixtures + "/qwen --out " + out + mirror.here());
  INFO(other.output);
  CHECK(other.exit_code == 1);
  CHECK_THAT(other.output, Catch::Contains("another tokenizer"));
  const Ended namesake = mirror.prepare("openwebtext --tokenizer " + fixtures + "/qwen" + mirror.here());  // whose default is of the name
  CHECK(namesake.exit_code == 2);
}

TEST_CASE("damaged and partial downloads, and no network") {
  const Mirror mirror;
  namespace fs = std::filesystem;
  const std::string out = mirror.directory / "out", name = "fineweb_train_000001.bin", there = mirror.directory / ("mirror/" + name),
                    part = mirror.directory / ("downloads/" + name + ".part"), file = mirror.directory / ("downloads/" + name);
  const std::string whole = read_file(there);
  const auto run = [&] { return mirror.prepare("fineweb --shards 1 --out " + out + mirror.here()); };

  std::string damaged = whole;
  damaged[1500] ^= 1;
  write(there, damaged);  // not what SHA256SUMS says
  Ended ended = run();
  CHECK(ended.exit_code == 1);
  CHECK_THAT(ended.output, Contains("does not have sha256") && Contains("fetched and checked"));  // the validation file is kept
  CHECK_FALSE(fs::exists(part));
  CHECK_FALSE(fs::exists(out + "/train_000001.bin"));

  write(there, whole.substr(0, whole.size() - 2));  // as SHA256SUMS says, but not as its own header does
  mirror.sum();
  ended = run();
  CHECK(ended.exit_code == 1);
  CHECK_THAT(ended.output, Contains("is not what it should be"));
  std::string foreign = whole;
  foreign[1024] = foreign[1025] = '\xff';  // id 65535
  write(there, foreign);
  mirror.sum();
  ended = run();
  CHECK(ended.exit_code == 1);
  CHECK_THAT(ended.output, Contains("id 65535 is none of GPT-2's"));

  write(there, whole);
  mirror.sum();
  write(part, whole.substr(0, 1000));
  ended = run();
  INFO(ended.output);
  CHECK(ended.exit_code == 0);
  CHECK_THAT(ended.output, Contains("going on after 1000 bytes"));
  CHECK((read_file(file) == whole));
  fs::rename(file, part);  // interrupted between the last byte and the renaming
  fs::remove(there);
  CHECK(run().exit_code == 0);
  CHECK((read_file(file) == whole));
  write(file, damaged);
  ended = run();
  CHECK(ended.exit_code == 1);
  CHECK_THAT(ended.output, Contains("move it away"));

  ended = mirror.prepare("fineweb --shards 1 --out " + out + " --mirror file:///nowhere");
  CHECK(ended.exit_code == 1);
  CHECK_THAT(ended.output, Contains("file:///nowhere/SHA256SUMS"));
  // No public address answers behind this proxy, whether the machine has a network or not.
  const Ended offline = run_command(text("env https_proxy=http://127.0.0.1:9 DMUON_DATA_TOOL=", DMUON_DATA, " bash ", source_directory(),
                                         "/scripts/prepare_data.sh openwebtext --tokenizer qwen --downloads ", mirror.directory / "none",
                                         " --out ", mirror.directory / "none_out"),
                                    60);
  CHECK(offline.exit_code == 1);
  CHECK_THAT(offline.output, Contains("could not download tokenizer.json") &&
                                 Contains("https://huggingface.co/Qwen/Qwen2.5-0.5B/resolve/main") &&
                                 Contains(mirror.directory / "none/tokenizer.json") &&
                                 Contains("c0382117ea329cdf097041132f6d735924b697924d6f6fc3945713e96ce87539"));
  for (const char* wrong :
       {"", "atlantis", "fineweb --shards 0", "fineweb --shards 104", "fineweb --tokenizer /nowhere", "fineweb --shards"})
    CHECK(run_command(text("bash ", source_directory(), "/scripts/prepare_data.sh ", wrong), 20).exit_code == 2);
}
