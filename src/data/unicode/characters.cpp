// Classes and composition by utf8proc.
#include <utf8proc.h>

#include <array>
#include <vector>

#include "data/unicode.h"
#include "data/utf8.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon::unicode {
namespace {

constexpr int32_t code_points = 0x110000;
constexpr bool surrogate(int32_t code_point) { return code_point >= 0xD800 && code_point < 0xE000; }

constexpr bool is_white_space(int32_t c) {
  return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

// Canonical decomposition of one character; 1 and itself where there is none.
int64_t decompose(int32_t code_point, std::array<int32_t, 32>& out) {
  int boundary = 0;
  return utf8proc_decompose_char(code_point, out.data(), static_cast<utf8proc_ssize_t>(out.size()),
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary);
}

std::vector<uint8_t> make_classes() {
  std::vector<uint8_t> table(code_points, 0);
  for (int32_t c = 0; c < code_points; ++c) {
    if (surrogate(c)) continue;
    uint8_t found = is_white_space(c) ? space : 0;
    const utf8proc_category_t category = utf8proc_category(c);
    if (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO) found |= letter;
    if (category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO) found |= number;
    if (utf8proc_get_property(c)->combining_class == 0) found |= inert;
    table[static_cast<size_t>(c)] = found;
  }
  const auto changes = [&](int32_t c) { table[static_cast<size_t>(c)] &= static_cast<uint8_t>(~inert); };
  std::array<int32_t, 32> parts{};
  for (int32_t c = 0; c < code_points; ++c) {
    if (surrogate(c)) continue;
    const int64_t count = decompose(c, parts);
    if (count == 1 && parts[0] == c) continue;
    // Whatever stands second in a decomposition may be composed with what precedes it.
    for (int64_t i = 1; i < count; ++i) changes(parts[static_cast<size_t>(i)]);
    const auto composed = utf8proc_normalize_utf32(parts.data(), count, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (composed != 1 || parts[0] != c) changes(c);
  }
  for (int32_t c = 0x1161; c <= 0x11C2; ++c) changes(c);  // vowels and final consonants of Hangul
  return table;
}

void compose_stretch(std::string_view text, std::vector<int32_t>& buffer, std::string& out) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  const auto length = static_cast<utf8proc_ssize_t>(text.size());
  buffer.resize(4 * text.size() + 16);
  const utf8proc_ssize_t found = utf8proc_decompose(bytes, length, buffer.data(), static_cast<utf8proc_ssize_t>(buffer.size()), options);
  if (found < 0 || found > static_cast<utf8proc_ssize_t>(buffer.size()))
    throw DataError(text.size() > 64 ? "text that NFC cannot compose" : dmuon::text("text that NFC cannot compose: ", text));
  const utf8proc_ssize_t composed = utf8proc_normalize_utf32(buffer.data(), found, options);
  for (utf8proc_ssize_t i = 0; i < composed; ++i) utf8::append(static_cast<char32_t>(buffer[static_cast<size_t>(i)]), out);
}

}  // namespace

const uint8_t* classes() {
  static const std::vector<uint8_t> table = make_classes();
  return table.data();
}

void append_composed(std::string_view text, std::string& out) {
  const uint8_t* table = classes();
  std::vector<int32_t> buffer;
  size_t copied = 0, stretch = 0;  // [copied, at): copied as it is; `stretch`: the last inert character
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      stretch = at++;
      continue;
    }
    const utf8::Decoded here = utf8::decode(text.substr(at));
    if (table[here.code_point] & inert) {
      stretch = at;
      at += here.bytes;
      continue;
    }
    // From the inert character before it to the next one: what lies outside cannot take part.
    size_t end = at + here.bytes;
    while (end < text.size()) {
      const utf8::Decoded next = utf8::decode(text.substr(end));
      if (table[next.code_point] & inert) break;
      end += next.bytes;
    }
    const size_t begin = std::max(stretch, copied);
    out.append(text, copied, begin - copied);
    compose_stretch(text.substr(begin, end - begin), buffer, out);
    copied = at = stretch = end;
  }
  out.append(text, copied);
}

}  // namespace dmuon::unicode
