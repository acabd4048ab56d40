// Tokenizers: round trips, storage as JSON, and text or ids they must refuse.
#include "data/text_reader.h"
#include "data/utf8.h"
#include "data_layer/files.h"
#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "dmuon/data/tokenizer.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::testing;
using Catch::Contains;

namespace {

std::string random_text(uint64_t seed, int64_t characters) {
  static constexpr uint32_t limits[] = {0x80, 0x800, 0x3000, 0x110000};
  const Random random(seed, RandomStream::test);
  std::string out;
  for (uint64_t i = 0; i < static_cast<uint64_t>(characters); ++i) {
    auto code_point = static_cast<char32_t>(random.below(limits[random.below(4, i, 0)], i, 1));
    if (code_point >= 0xD800 && code_point < 0xE000) code_point = U'x';
    utf8::append(code_point, out);
  }
  return out;
}

}  // namespace

TEST_CASE("UTF-8 follows RFC 3629") {
  for (const char32_t code_point :
       {U'\0', U'a', U'\u007f', U'\u0080', U'\u07ff', U'\u0800', U'\ud7ff', U'\ue000', U'\uffff', U'\U00010000', U'\U0010ffff'}) {
    std::string encoded;
    utf8::append(code_point, encoded);
    const utf8::Decoded decoded = utf8::decode(encoded);
    CHECK(decoded.code_point == code_point);
    CHECK(decoded.bytes == encoded.size());
    for (size_t cut = 1; cut < encoded.size(); ++cut) {
      CHECK(utf8::decode(encoded.substr(0, cut)).incomplete);
      CHECK(utf8::complete_prefix("ab" + encoded.substr(0, cut)) == 2);
    }
    CHECK(utf8::complete_prefix(encoded) == encoded.size());
  }
  for (const char* bad : {"\x80", "\xbf", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80",
                          "\xf5\x80\x80\x80", "\xff", "\xc3(", "\xe2\x82("}) {
    CHECK(utf8::decode(bad).bytes == 0);
    CHECK_FALSE(utf8::decode(bad).incomplete);
  }
  CHECK(utf8::complete_prefix("") == 0);
  CHECK(utf8::complete_prefix("\x80\x80\x80\x80") == 4);  // wrong, not unfinished: left to the encoder to refuse
}

TEST_CASE("the byte tokenizer takes anything") {
  const auto tokenizer = make_byte_tokenizer();
  CHECK(tokenizer->vocabulary_size() == 256);
  std::string all;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  const std::vector<int32_t> ids = tokenizer->encode(all);
  CHECK(ids == counting<int32_t>(256));
  CHECK(tokenizer->decode(ids) == all);
  CHECK_THROWS_WITH(tokenizer->decode(std::vector<int32_t>{1, 256}), Contains("256"));
  CHECK_THROWS_AS(tokenizer->decode(std::vector<int32_t>{-1}), DataError);
}

TEST_CASE("the character tokenizer numbers characters by code point") {
  const auto tokenizer = make_character_tokenizer("banan\xC3\xA9\n");
  CHECK(tokenizer->vocabulary_size() == 5);
  CHECK(tokenizer->encode("\nabn\xC3\xA9") == counting<int32_t>(5));
  CHECK(tokenizer->decode(std::vector<int32_t>{2, 1, 4}) == "ba\xC3\xA9");
  CHECK(tokenizer->encode("").empty());
  std::vector<int32_t> ids;
  CHECK_THROWS_WITH(tokenizer->encode("ab\xE2\x82\xAC", "novel.txt", 100, ids),
                    Contains("novel.txt") && Contains("U+20AC") && Contains("offset 102"));
  CHECK_THROWS_WITH(tokenizer->encode("ab\xff", "novel.txt", 100, ids),
                    Contains("novel.txt") && Contains("not valid UTF-8 at byte offset 102") && Contains("0xff"));
  CHECK_THROWS_AS(tokenizer->encode("ab\xff"), DataError);
  CHECK_THROWS_WITH(tokenizer->encode("a\xE2\x82"), Contains("offset 1") && Contains("cut off"));
  CHECK_THROWS_WITH(tokenizer->decode(std::vector<int32_t>{5}), Contains("token id 5") && Contains("vocabulary of 5"));
  CHECK_THROWS_AS(tokenizer->decode(std::vector<int32_t>{-1149026846}), DataError);
  CHECK_THROWS_AS(make_character_tokenizer(""), DataError);
}

TEST_CASE("encode and decode are inverse on random text, whole or in pieces") {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::string source = random_text(seed, static_cast<int64_t>(1 + 37 * seed));
    for (const auto& tokenizer : {make_byte_tokenizer(), make_character_tokenizer(source)}) {
      const std::vector<int32_t> whole = tokenizer->encode(source);
      CHECK(tokenizer->decode(whole) == source);
      for (const int32_t id : whole) CHECK((id >= 0 && id < tokenizer->vocabulary_size()));
      std::vector<int32_t> pieces;
      std::string rest;
      for (size_t at = 0; at < source.size(); at += 1 + seed) {
        rest += source.substr(at, 1 + seed);
        const size_t size = tokenizer->complete_prefix(rest);
        tokenizer->encode(std::string_view(rest).substr(0, size), "text", 0, pieces);
        rest.erase(0, size);
      }
      tokenizer->encode(rest, "text", 0, pieces);
      CHECK(pieces == whole);
      const auto copy = tokenizer_from_json(parse_json(tokenizer->to_json().dump(), "test"));
      CHECK(copy->encode(source) == whole);
      CHECK(copy->hash() == tokenizer->hash());
    }
  }
  CHECK(make_character_tokenizer("ab")->hash() != make_character_tokenizer("ac")->hash());
}

TEST_CASE("text files come in pieces that join to the file") {
  Directory directory;
  // Three-byte characters at every alignment to the pieces.
  for (size_t shift = 0; shift < 3; ++shift) {
    std::string content(shift, 'a');
    while (content.size() < (size_t{5} << 19)) content += "\xE2\x82\xAC";
    const std::string file = write(directory / "long.txt", content);
    std::string joined;
    int pieces = 0;
    read_text(file, utf8::complete_prefix, [&](std::string_view piece, int64_t offset) {
      CHECK(offset == static_cast<int64_t>(joined.size()));
      CHECK(utf8::complete_prefix(piece) == piece.size());
      joined += piece;
      ++pieces;
    });
    CHECK(joined == content);
    CHECK(pieces == 3);
  }
  CHECK_THROWS_AS(read_text(directory / "missing", utf8::complete_prefix, [](std::string_view, int64_t) {}), StorageError);
}

TEST_CASE("a character tokenizer from files names the file and offset of bad text") {
  Directory directory;
  const std::string good = write(directory / "good.txt", "cab"),
                    bad = write(directory / "bad.txt", std::string((1 << 20) + 5, 'x') + "\xC3");
  const auto tokenizer = make_character_tokenizer_from_files(std::vector{good});
  CHECK(tokenizer->decode(counting<int32_t>(3)) == "abc");
  CHECK_THROWS_WITH(make_character_tokenizer_from_files(std::vector{good, bad}), Contains("bad.txt") && Contains("offset 1048581"));
}

TEST_CASE("descriptions of tokenizers are checked") {
  Directory directory;
  const auto from = [](const char* json) { return tokenizer_from_json(parse_json(json, "test")); };
  CHECK_THROWS_AS(from("[]"), DataError);
  CHECK_THROWS_AS(from("{}"), DataError);
  CHECK_THROWS_WITH(from(R"({"type": "sentence"})"), Contains("sentence"));
  CHECK_THROWS_AS(from(R"({"type": "character"})"), DataError);
  CHECK_THROWS_AS(from(R"({"type": "character", "characters": ""})"), DataError);
  CHECK(from(R"({"type": "character", "characters": "a\u0000"})")->vocabulary_size() == 2);
  CHECK(read_tokenizer(write(directory / "t.json", R"({"type": "byte"})"))->name() == "byte");
  CHECK(read_tokenizer(write(directory / "m.json", R"({"tokens": 5, "tokenizer": {"type": "byte"}})"))->name() == "byte");
  CHECK_THROWS_WITH(read_tokenizer(directory / "none.json"), Contains("none.json"));
  CHECK_THROWS_AS(read_tokenizer(write(directory / "b.json", "{")), DataError);
  CHECK_THROWS_WITH(read_tokenizer(write(directory / "c.json", "{}")), Contains("c.json"));
}
