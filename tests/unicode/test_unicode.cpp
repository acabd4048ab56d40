// Every code point through both Unicode libraries: the scanners' classes are utf8proc's, patterns without a scanner are PCRE2's, and the
// two may know different versions of Unicode.
#include <utf8proc.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "data/unicode.h"
#include "data/utf8.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

constexpr int32_t code_points = 0x110000;
constexpr bool surrogate(int32_t c) { return c >= 0xD800 && c < 0xE000; }

// Which code points `set` matches, by PCRE2. `other` is an ASCII character that it does not match.
std::vector<bool> matched(const std::string& set, char other) {
  const unicode::Pattern pattern(set + "+");
  std::vector<bool> found(code_points, false);
  std::string text(1, other);
  for (int32_t c = 0; c < code_points; ++c)
    if (!surrogate(c)) utf8::append(static_cast<char32_t>(c), text);
  bool match = false;  // stretches alternate, and the first one, `other`, is none
  pattern.split(text, [&](std::string_view piece) {
    if (match)
      for (size_t at = 0; at < piece.size();) {
        const utf8::Decoded here = utf8::decode(piece.substr(at));
        found[here.code_point] = true;
        at += here.bytes;
      }
    match = !match;
  });
  return found;
}

// "... (Unicode 15.0.0), ... (Unicode 14.0.0)": of utf8proc and PCRE2, as 15 * 100 + 0.
std::pair<int, int> versions() {
  const std::string text = unicode::versions();
  const auto number = [&](size_t from) {
    const size_t at = text.find("Unicode ", from) + 8;
    return 100 * std::atoi(text.c_str() + at) + std::atoi(text.c_str() + text.find('.', at) + 1);
  };
  return {number(0), number(text.find("PCRE2"))};
}

std::string nfc(const std::string& text) {
  utf8proc_uint8_t* composed = nullptr;
  const utf8proc_ssize_t bytes =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()), &composed,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  REQUIRE(bytes >= 0);
  std::string out(reinterpret_cast<const char*>(composed), static_cast<size_t>(bytes));
  std::free(composed);
  return out;
}

}  // namespace

TEST_CASE("both libraries agree on every code point that both know") {
  const auto [utf8proc, pcre2] = versions();
  INFO(unicode::versions());
  const uint8_t* classes = unicode::classes();
  const std::vector<bool> letters = matched("\\p{L}", ' '), numbers = matched("\\p{N}", ' '), spaces = matched("\\s", 'a'),
                          unassigned = matched("\\p{Cn}", 'a');
  int64_t known = 0, newer_here = 0, newer_there = 0, counted[3] = {};
  std::vector<int32_t> contradictions;
  for (int32_t c = 0; c < code_points; ++c) {
    if (surrogate(c)) continue;
    const auto at = static_cast<size_t>(c);
    const int theirs = (letters[at] ? unicode::letter : 0) | (numbers[at] ? unicode::number : 0) | (spaces[at] ? unicode::space : 0);
    const int ours = classes[c] & (unicode::letter | unicode::number | unicode::space);
    const bool known_here = utf8proc_category(c) != UTF8PROC_CATEGORY_CN, known_there = !unassigned[at];
    known += known_here && known_there ? 1 : 0;
    newer_here += known_here && !known_there ? 1 : 0;
    newer_there += !known_here && known_there ? 1 : 0;
    counted[0] += ours & unicode::letter ? 1 : 0;
    counted[1] += ours & unicode::number ? 1 : 0;
    counted[2] += ours & unicode::space ? 1 : 0;
    // A difference is allowed only where one library does not know the character yet; what it does not know is in none of its classes.
    const bool right = known_here == known_there ? ours == theirs : known_here ? theirs == 0 : ours == 0;
    if (!right && contradictions.size() < 10) contradictions.push_back(c);
  }
  CHECK(contradictions == std::vector<int32_t>{});
  CHECK(known > 280'000);
  CHECK(counted[0] > 130'000);
  CHECK(counted[1] > 1'700);
  CHECK(counted[2] == 25);  // White_Space has been stable since Unicode 6.3
  // The newer version knows more, the same version the same. No character was ever taken back.
  CHECK((newer_here > 0) == (utf8proc > pcre2));
  CHECK((newer_there > 0) == (pcre2 > utf8proc));
  if (utf8proc == 1500 && pcre2 == 1400) CHECK(newer_here == 4489);  // as the Unicode Consortium counts the additions of 15.0
}

TEST_CASE("NFC of every code point, alone and among others, is utf8proc's") {
  int64_t changed = 0, wrong = 0;
  int32_t first_wrong = -1;
  for (int32_t c = 0; c < code_points; ++c) {
    if (surrogate(c)) continue;
    std::string one;
    utf8::append(static_cast<char32_t>(c), one);
    // Alone; between a letter that composes, marks of two classes and a vowel of Hangul; after itself.
    for (const std::string& text : {one, "e" + one + "\u0301\u0323a", "\u1100" + one + "\u1161\u11a8" + one}) {
      std::string out;
      unicode::append_composed(text, out);
      const std::string wanted = nfc(text);
      changed += wanted != text ? 1 : 0;
      if (out != wanted && ++wrong == 1) first_wrong = c;
    }
  }
  INFO("first: " << first_wrong);
  CHECK(wrong == 0);
  CHECK(changed > 2'000);
}
