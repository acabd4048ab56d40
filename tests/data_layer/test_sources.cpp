// Token sources: every layout, positions beyond 2^31 bytes, and every file that must be refused.
#include <clocale>

#include "data_layer/files.h"
#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "dmuon/data/token_data.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::testing;
using Catch::Contains;

namespace {

using Files = std::vector<std::string>;

std::vector<int32_t> read(const TokenSource& source, int64_t first, int64_t count) {
  std::vector<int32_t> out(static_cast<size_t>(count), -7);
  source.read(first, out);
  return out;
}

TokenSourceHandle open_auto(const Files& files, int64_t vocabulary_size = 0) {
  return open_tokens(files, detect_format(files, "auto"), make_byte_tokenizer(), vocabulary_size);
}

// The text of the DataError that `call` throws.
template <class Call>
std::string refusal(Call call) {
  try {
    call();
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

}  // namespace

TEST_CASE("all layouts read the same tokens across file boundaries") {
  Directory directory;
  const Files llmc = {write(directory / "a", shard16(counting<uint16_t>(5))), write(directory / "b", shard32(counting<uint32_t>(1, 5))),
                      write(directory / "c", shard16(counting<uint16_t>(94, 6)))};
  const Files nanogpt = {write(directory / "a.bin", raw(counting<uint16_t>(3))),
                         write(directory / "b.bin", raw(counting<uint16_t>(97, 3)))};
  const Files bytes = {write(directory / "a.txt", raw(counting<uint8_t>(50, 1))),
                       write(directory / "b.txt", raw(counting<uint8_t>(50, 51)))};
  CHECK(detect_format(llmc, "auto") == TokenFormat::llmc);
  CHECK(detect_format(nanogpt, "auto") == TokenFormat::nanogpt);
  CHECK(detect_format(bytes, "auto") == TokenFormat::text);
  const Random random(1, RandomStream::test);
  for (const Files& files : {llmc, nanogpt, bytes}) {
    const auto source = open_auto(files);
    REQUIRE(source->tokens() == 100);
    const int32_t base = source->format() == TokenFormat::text ? 1 : 0;  // text files without zero bytes
    for (uint64_t i = 0; i < 50; ++i) {
      const auto first = static_cast<int64_t>(random.below(100, i, 0)),
                 count = static_cast<int64_t>(random.below(101 - static_cast<uint64_t>(first), i, 1));
      CHECK(read(*source, first, count) == counting<int32_t>(count, first + base));
    }
    CHECK(read(*source, 100, 0).empty());
    CHECK_THROWS_AS(read(*source, 100, 1), DataError);
    CHECK_THROWS_AS(read(*source, -1, 1), DataError);
    CHECK_THROWS_AS(read(*source, 0, 101), DataError);
    const auto part = slice(source, 10, 20);
    CHECK(part->tokens() == 20);
    CHECK(read(*part, 5, 15) == counting<int32_t>(15, 15 + base));
    CHECK_THROWS_AS(read(*part, 5, 16), DataError);
    CHECK_THROWS_AS(slice(source, 90, 11), DataError);
  }
}

TEST_CASE("a shard is read beyond 2^31 bytes") {
  Directory directory;
  const int64_t bytes = int64_t{3} << 30;  // sparse: takes no room on disk
  const std::string raw_file = write(directory / "large.bin", ""),
                    shard = write(directory / "shard.bin", llmc_header(20240520, 1, (1 << 30) + 500'000'000));
  const auto poke = [](const std::string& file, int64_t size, int64_t offset) {
    std::filesystem::resize_file(file, static_cast<uintmax_t>(size));
    std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(offset);
    const std::vector<uint16_t> ids = {11, 12, 13};
    out.write(reinterpret_cast<const char*>(ids.data()), 6);
  };
  poke(raw_file, bytes, 2 * ((int64_t{1} << 30) + 5));
  poke(shard, 1024 + 2 * ((int64_t{1} << 30) + 500'000'000), 1024 + 2 * ((int64_t{1} << 30) + 5));
  for (const std::string& file : {raw_file, shard}) {
    const auto source = open_auto({file}, 50257);
    CHECK(source->tokens() > int64_t{1} << 30);
    CHECK(read(*source, (int64_t{1} << 30) + 4, 5) == std::vector<int32_t>{0, 11, 12, 13, 0});
    CHECK(read(*source, source->tokens() - 2, 2) == std::vector<int32_t>{0, 0});
  }
}

TEST_CASE("positions beyond 2^31 tokens") {
  Directory directory;
  Files files;
  for (const char* name : {"a.bin", "b.bin"}) {
    files.push_back(write(directory / name, ""));
    std::filesystem::resize_file(files.back(), uintmax_t{3} << 30);
  }
  {
    std::fstream out(files[1], std::ios::in | std::ios::out | std::ios::binary);
    out.seekp(-2, std::ios::end);
    out.write("\x2a\x00", 2);
  }
  const auto source = open_auto(files);
  CHECK(source->tokens() == int64_t{3} << 30);
  CHECK(read(*source, (int64_t{3} << 30) - 2, 2) == std::vector<int32_t>{0, 42});
}

TEST_CASE("a token id outside the vocabulary is named with file and offset") {
  Directory directory;
  const Files narrow = {write(directory / "good.bin", shard16({1, 2, 3})), write(directory / "bad.bin", shard16({4, 5, 300, 6}))};
  const auto source = open_auto(narrow, 300);
  CHECK(read(*source, 0, 5) == std::vector<int32_t>{1, 2, 3, 4, 5});
  const std::string message = refusal([&] { read(*source, 1, 6); });
  CHECK_THAT(message, Contains("bad.bin") && Contains("id 300 at token 2") && Contains("offset 1028") && Contains("vocabulary of 300"));
  CHECK(read(*open_auto(narrow, 301), 5, 1) == std::vector<int32_t>{300});
  const auto wide = open_auto({write(directory / "wide.bin", shard32({7, 4'000'000'000u}))});
  CHECK_THAT(refusal([&] { read(*wide, 0, 2); }), Contains("id 4000000000 at token 1") && Contains("offset 1028"));
  const auto plain = open_auto({write(directory / "plain.bin", raw(std::vector<uint16_t>{9, 50257}))}, 50257);
  CHECK_THAT(refusal([&] { read(*plain, 0, 2); }), Contains("id 50257 at token 1") && Contains("offset 2"));
}

TEST_CASE("files that are no token shards are refused at opening") {
  Directory directory;
  const std::string good = shard16(counting<uint16_t>(10));
  const auto opening = [&](const std::string& name, const std::string& content) {
    const std::string file = write(directory / name, content);
    return refusal([&] { open_auto({file}); });
  };
  CHECK_THAT(opening("empty.bin", ""), Contains("empty.bin") && Contains("is empty"));
  CHECK_THAT(opening("empty.txt", ""), Contains("empty.txt") && Contains("is empty"));
  CHECK_THAT(opening("cut.bin", good.substr(0, good.size() - 1)),
             Contains("truncated") && Contains("10 tokens") && Contains("1044 bytes, found 1043"));
  CHECK_THAT(opening("header.bin", good.substr(0, 1000)), Contains("truncated") && Contains("found 1000 bytes") && Contains("1024"));
  CHECK_THAT(opening("long.bin", good + "x"), Contains("too long") && Contains("found 1045"));
  CHECK_THAT(opening("version.bin", llmc_header(20240520, 2, 1) + "ab"), Contains("version 2, expected version 1"));
  CHECK_THAT(opening("version7.bin", llmc_header(20240801, 1, 1) + "abcd"), Contains("version 1, expected version 7"));
  CHECK_THAT(opening("zero.bin", llmc_header(20240520, 1, 0)), Contains("announces 0 tokens"));
  CHECK_THAT(opening("negative.bin", llmc_header(20240520, 1, -5)), Contains("announces -5 tokens"));
  CHECK_THAT(opening("swapped.bin", llmc_header(static_cast<int32_t>(__builtin_bswap32(20240520)), 1, 1) + "ab"),
             Contains("byte-swapped") && Contains("expected 20240520"));
  CHECK_THAT(opening("odd.bin", "abc"), Contains("found 3 bytes") && Contains("even number"));
  CHECK_THAT(opening("model.bin", llmc_header(20240326, 3, 1) + "ab"), Contains("llm.c model"));
  CHECK_THAT(opening("text.gz", "\x1f\x8b\x08"), Contains("gzip"));
  CHECK_THAT(opening("image.png", std::string("\x89PNG\0\0", 6)), Contains("zero byte at offset 4"));

  const Files text = {write(directory / "plain.txt", "some text, more than one header long")};
  CHECK_THAT(refusal([&] { open_tokens(text, TokenFormat::llmc, nullptr, 0); }),
             Contains("not an llm.c token shard") && Contains("20240520"));
  CHECK_THAT(refusal([&] { open_tokens(Files{write(directory / "ab", "ab")}, TokenFormat::llmc, nullptr, 0); }), Contains("truncated"));
  CHECK_THAT(refusal([&] { open_tokens(Files{write(directory / "s.bin", good)}, TokenFormat::nanogpt, nullptr, 0); }),
             Contains("set data.format to llmc"));
  CHECK_THAT(refusal([&] { open_tokens(text, TokenFormat::text, nullptr, 0); }), Contains("needs a tokenizer"));
  CHECK_THAT(refusal([&] {
               detect_format(Files{text[0], directory / "s.bin"}, "auto");
             }),
             Contains("found format llmc") && Contains("is text"));
  CHECK_THROWS_AS(detect_format(text, "parquet"), ConfigError);
  CHECK_THROWS_AS(detect_format(Files{}, "auto"), DataError);
  // One bad shard among good ones is found before training starts.
  const Files shards = {directory / "s.bin", directory / "cut.bin"};
  CHECK_THAT(refusal([&] { open_auto(shards); }), Contains("cut.bin"));
}

TEST_CASE("globs give byte order in every locale, and name what is wrong") {
  Directory directory;
  for (const char* name : {"b.txt", "B.txt", "a.txt", "\xC3\xA4.txt", "_.txt", "a10.txt", "a9.txt", "c[1].txt"})
    write(directory / name, "x");
  std::filesystem::create_directory(directory / "sub.txt");
  const Files wanted = {"B.txt", "_.txt", "a.txt", "a10.txt", "a9.txt", "b.txt", "c[1].txt", "\xC3\xA4.txt"};
  for (const char* locale : {"C", "C.UTF-8", "en_US.UTF-8", ""}) {
    std::setlocale(LC_ALL, locale);
    Files found;
    for (const std::string& file : expand_files(Files{directory / "[!s]*.txt"}, "data.train"))
      found.push_back(std::filesystem::path(file).filename().string());
    CHECK(found == wanted);
  }
  std::setlocale(LC_ALL, "C");
  // The list keeps its order; a name with glob characters stands for itself.
  CHECK(expand_files(Files{directory / "b.txt", directory / "a9*"}, "k") == Files{directory / "b.txt", directory / "a9.txt"});
  CHECK(expand_files(Files{directory / "c[1].txt"}, "k") == Files{directory / "c[1].txt"});
  CHECK(expand_files(Files{}, "k").empty());
  CHECK_THAT(refusal([&] { expand_files(Files{directory / "*.bin"}, "data.train"); }),
             Contains("data.train") && Contains("*.bin") && Contains("no file matches"));
  CHECK_THAT(refusal([&] { expand_files(Files{directory / "missing"}, "data.validation"); }),
             Contains("data.validation") && Contains("missing"));
  CHECK_THAT(refusal([&] { expand_files(Files{directory / "sub.txt"}, "k"); }), Contains("not a regular file"));
  CHECK_THAT(refusal([&] { expand_files(Files{directory / "a.txt", directory / "a*"}, "k"); }), Contains("listed twice"));
  std::filesystem::create_symlink(directory / "a.txt", directory / "link.txt");
  CHECK_THAT(refusal([&] { expand_files(Files{directory / "a.txt", directory / "link.txt"}, "k"); }), Contains("same file as"));
}
