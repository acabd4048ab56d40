// Splits text into the words that byte-level BPE merges inside of.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "data/unicode.h"

namespace dmuon {

// The pattern of GPT-2, which is also ByteLevel's with use_regex.
inline constexpr std::string_view gpt2_pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class PreTokenizer {
 public:
  // GPT-2's and Qwen's patterns, the latter with numbers of up to 1 or 3 digits, have scanners of their own; others run
  // through PCRE2. DataError if the pattern is not a regular expression.
  explicit PreTokenizer(const std::string& pattern);

  // Calls `visit(word)` front to back; the words join to `text`, which is valid UTF-8.
  template <class Visit>
  void split(std::string_view text, const Visit& visit) const {
    if (general_) return general_->split(text, visit);
    const char* at = text.data();
    const char* const end = at + text.size();
    while (at < end) {
      const char* const next = kind_ == Kind::gpt2 ? gpt2_word(at, end) : qwen_word(at, end);
      visit(std::string_view(at, static_cast<size_t>(next - at)));
      at = next;
    }
  }

  // Whether no word of these patterns can cross the place between a character of classes `before` and one of classes `after`
  // (`unicode::classes`), and neither side's words depend on the other side. Never for a general pattern.
  bool separates(uint8_t before, uint8_t after, char32_t after_character) const;
  bool has_scanner() const { return !general_; }

 private:
  enum class Kind { gpt2, qwen, general };
  const char* gpt2_word(const char* at, const char* end) const;
  const char* qwen_word(const char* at, const char* end) const;

  Kind kind_ = Kind::general;
  int digits_ = 1;
  const uint8_t* classes_ = nullptr;
  std::shared_ptr<const unicode::Pattern> general_;
};

}  // namespace dmuon
