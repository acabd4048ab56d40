// What a stream of bytes shows, however it is cut.
#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "support/catch.h"
#include "train/text_stream.h"

using namespace dmuon;

namespace {

// Byte by byte: the text ends where the first stop string is complete.
std::string naive(const std::string& bytes, const std::vector<std::string>& stop_strings) {
  for (size_t end = 0; end <= bytes.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stop_strings)
      if (std::string_view(bytes).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    if (longest > 0) return replace_invalid(std::string_view(bytes).substr(0, end - longest));
  }
  return replace_invalid(bytes);
}

}  // namespace

TEST_CASE("whole characters only, however bytes are cut") {
  TextStream stream;
  const std::string euro = "\xE2\x82\xAC";
  CHECK(stream.push("a" + euro.substr(0, 1)) == "a");
  CHECK(stream.push(euro.substr(1, 1)) == "");
  CHECK(stream.push(euro.substr(2) + "b") == euro + "b");
  CHECK(stream.push("\xF0\x9F") == "");
  CHECK(stream.push("x") == "\uFFFD\uFFFDx");  // neither byte became a character
  CHECK(stream.push("\xE2") == "");
  CHECK(stream.finish() == "\uFFFD");
  CHECK(replace_invalid("\x80 ok \xC0\xAF") == "\uFFFD ok \uFFFD\uFFFD");
}

TEST_CASE("stop strings across pieces: held back until they cannot be one") {
  TextStream stream({"END", "NDX"});
  CHECK(stream.push("abE") == "ab");
  CHECK(stream.push("N") == "");
  CHECK(stream.push("x") == "ENx");
  CHECK(stream.push(" EN") == " ");
  CHECK_FALSE(stream.stopped());
  CHECK(stream.push("D and more") == "");
  CHECK(stream.stopped());
  CHECK(stream.push("END") == "");
  CHECK(stream.finish() == "");
  TextStream open({"END"});
  CHECK(open.push("EN") == "");
  CHECK(open.finish() == "EN");
  CHECK_THROWS_AS(TextStream({"a", ""}), ConfigError);
}

TEST_CASE("any cut of random bytes shows what the whole does") {
  const std::vector<std::string> alphabet{"a", "b", "\xE2", "\x82", "\xAC", "\xF0", "\x9F", "\xC3", "\xA9", "\xFF"};
  const std::vector<std::vector<std::string>> stops{{}, {"ab"}, {"aab", "b"}, {"aba", "bab"}, {"\xC3\xA9", "a\xE2\x82\xAC"}, {"bb", "abb"}};
  const Random random(5, RandomStream::test);
  uint64_t draw = 0;
  const auto below = [&](uint64_t bound) { return random.below(bound, draw++); };
  int stopped = 0;
  for (int round = 0; round < 3000; ++round) {
    std::string bytes;
    for (uint64_t i = 0, count = below(14); i < count; ++i) bytes += alphabet[below(round % 2 ? 4 : alphabet.size())];
    const auto& stop = stops[below(stops.size())];
    TextStream stream(stop);
    std::string shown;
    for (size_t at = 0; at < bytes.size();) {
      const size_t count = std::min<size_t>(1 + below(4), bytes.size() - at);
      shown += stream.push(std::string_view(bytes).substr(at, count));
      at += count;
    }
    shown += stream.finish();
    stopped += stream.stopped();
    REQUIRE(shown == naive(bytes, stop));
  }
  CHECK(stopped > 300);
}
