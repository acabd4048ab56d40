// What tokenizers need to know about Unicode: classes of characters, composition (NFC) and regular expressions. Classes and
// NFC come from one library and hence one version of Unicode; builds without the libraries have a stub that throws ConfigError.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace dmuon::unicode {

inline constexpr uint8_t letter = 1;  // \p{L}
inline constexpr uint8_t number = 2;  // \p{N}
inline constexpr uint8_t space = 4;   // \s: White_Space
// NFC leaves the character as it is, whatever surrounds it, and nothing before it combines with it or what follows.
inline constexpr uint8_t inert = 8;

// The classes of every code point, 0x110000 of them. Made at the first call.
const uint8_t* classes();
// NFC of valid UTF-8, appended to `out`.
void append_composed(std::string_view text, std::string& out);
// "utf8proc 2.8.0 (Unicode 15.0.0), PCRE2 10.42 (Unicode 14.0.0)"
std::string versions();

// A regular expression in which \p{..}, \s and (?i) have their Unicode meaning.
class Pattern {
 public:
  // DataError names what the library says is wrong with `expression`.
  explicit Pattern(const std::string& expression);
  ~Pattern();
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  // Calls `visit` for every match and every stretch between matches, in order, never with empty text. DataError if the
  // expression needs more steps than the library's limit.
  void split(std::string_view text, const std::function<void(std::string_view)>& visit) const;

 private:
  struct Compiled;
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace dmuon::unicode
