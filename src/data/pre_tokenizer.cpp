#include "data/pre_tokenizer.h"

namespace dmuon {
namespace {

constexpr uint8_t word_classes = unicode::letter | unicode::number | unicode::space;

struct Character {
  char32_t code_point;
  int bytes;
};

// Of text known to be valid.
inline Character character_at(const char* at) {
  const auto byte = [&](int i) { return static_cast<char32_t>(static_cast<unsigned char>(at[i])); };
  const char32_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xE0) return {(lead & 0x1F) << 6 | (byte(1) & 0x3F), 2};
  if (lead < 0xF0) return {(lead & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F), 3};
  return {(lead & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 | (byte(3) & 0x3F), 4};
}

// Past the longest run of characters of which exactly the classes `wanted` of word_classes hold.
inline const char* skip_run(const uint8_t* classes, const char* at, const char* end, uint8_t wanted) {
  while (at < end) {
    const Character here = character_at(at);
    if ((classes[here.code_point] & word_classes) != wanted) break;
    at += here.bytes;
  }
  return at;
}

inline bool line_break(char32_t c) { return c == '\n' || c == '\r'; }

// \s+(?!\S)|\s+ : a run keeps its last character back for the word that follows, unless it has only one or ends the text.
inline const char* white_space(const uint8_t* classes, const char* at, const char* end) {
  const char* last = at;
  const char* next = at;
  while (next < end) {
    const Character here = character_at(next);
    if (!(classes[here.code_point] & unicode::space)) break;
    last = next;
    next += here.bytes;
  }
  return next == end || last == at ? next : last;
}

// What follows an apostrophe: 0 or the bytes of s t m d re ve ll.
template <bool any_case>
inline int contraction(const char* at, const char* end) {
  if (at == end) return 0;
  const auto low = [](char c) { return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
  const char first = low(*at);
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 1;
  if (end - at < 2) return 0;
  const char second = low(at[1]);
  if ((first == 'r' || first == 'v') && second == 'e') return 2;
  if (first == 'l' && second == 'l') return 2;
  return any_case && at[0] == '\xC5' && at[1] == '\xBF' ? 2 : 0;  // U+017F is an s in lower case too
}

}  // namespace

PreTokenizer::PreTokenizer(const std::string& pattern) {
  static const std::string head = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|)";
  static const std::string tail = R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  if (pattern == gpt2_pattern)
    kind_ = Kind::gpt2;
  else if (pattern == head + R"(\p{N})" + tail)
    kind_ = Kind::qwen;
  else if (pattern == head + R"(\p{N}{1,3})" + tail)
    kind_ = Kind::qwen, digits_ = 3;
  else
    general_ = std::make_shared<unicode::Pattern>(pattern);
  classes_ = unicode::classes();
}

const char* PreTokenizer::gpt2_word(const char* at, const char* end) const {
  if (*at == '\'')
    if (const int bytes = contraction<false>(at + 1, end); bytes > 0) return at + 1 + bytes;
  const char* begin = at + (*at == ' ');
  if (begin < end) {
    const uint8_t kind = classes_[character_at(begin).code_point] & word_classes;
    if (!(kind & unicode::space)) return skip_run(classes_, begin, end, kind);
  }
  return white_space(classes_, at, end);
}

const char* PreTokenizer::qwen_word(const char* at, const char* end) const {
  if (*at == '\'')
    if (const int bytes = contraction<true>(at + 1, end); bytes > 0) return at + 1 + bytes;
  const Character first = character_at(at);
  const uint8_t kind = classes_[first.code_point] & word_classes;
  if (kind == unicode::letter) return skip_run(classes_, at + first.bytes, end, unicode::letter);
  if (kind == unicode::number) {
    const char* next = at + first.bytes;
    for (int digit = 1; digit < digits_ && next < end; ++digit) {
      const Character here = character_at(next);
      if ((classes_[here.code_point] & word_classes) != unicode::number) break;
      next += here.bytes;
    }
    return next;
  }
  if (!line_break(first.code_point) && at + first.bytes < end) {  // one other character before letters
    const Character second = character_at(at + first.bytes);
    if (classes_[second.code_point] & unicode::letter) return skip_run(classes_, at + first.bytes + second.bytes, end, unicode::letter);
  }
  const char* begin = at + (*at == ' ');
  if (begin < end && (classes_[character_at(begin).code_point] & word_classes) == 0) {
    const char* next = skip_run(classes_, begin, end, 0);
    while (next < end && line_break(static_cast<unsigned char>(*next))) ++next;
    return next;
  }
  // \s*[\r\n]+ : up to the last line break of the run.
  const char* const run = skip_run(classes_, at, end, unicode::space);
  for (const char* back = run; back > at; --back)
    if (line_break(static_cast<unsigned char>(back[-1]))) return back;
  return white_space(classes_, at, end);
}

bool PreTokenizer::separates(uint8_t before, uint8_t after, char32_t after_character) const {
  if (general_ || !(after & unicode::inert) || (before & unicode::space)) return false;
  // White space only ever begins a word, except for line breaks after punctuation in Qwen's pattern.
  if (after & unicode::space)
    return !line_break(after_character) || (before & unicode::inert && before & (unicode::letter | unicode::number));
  // A run of letters or of numbers ends where another class begins. (Inert: composition doesn't change what the text ends with.)
  const uint8_t run = before & (unicode::letter | unicode::number);
  if (kind_ == Kind::qwen && digits_ == 1 && run == unicode::number) return true;  // each a word
  return run != 0 && (before & unicode::inert) && (after & word_classes) != run;
}

}  // namespace dmuon
