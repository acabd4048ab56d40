#include "data/utf8.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "dmuon/core/text.h"

namespace dmuon::utf8 {

Decoded decode(std::string_view text) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {lead, 1, false};
  const size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4) return {};
  char32_t code_point = lead & (0x7Fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {0, 0, true};
    // The second byte alone rules out overlong forms, surrogates and what lies above U+10FFFF.
    unsigned char low = 0x80, high = 0xBF;
    if (i == 1) {
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    }
    if (at(i) < low || at(i) > high) return {};
    code_point = code_point << 6 | (at(i) & 0x3Fu);
  }
  return {code_point, length, false};
}

void append(char32_t code_point, std::string& out) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18);
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

size_t complete_prefix(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if (byte < 0x80) break;
    if (byte >= 0xC0) return decode(text.substr(text.size() - back)).incomplete ? text.size() - back : text.size();
  }
  return text.size();
}

size_t valid_length(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    if (uint64_t eight = 0; at + 8 <= text.size()) {
      std::memcpy(&eight, text.data() + at, 8);
      if ((eight & 0x8080808080808080u) == 0) {
        at += 8;
        continue;
      }
    }
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const size_t bytes = decode(text.substr(at)).bytes;
    if (bytes == 0) break;
    at += bytes;
  }
  return at;
}

std::string replace_invalid(std::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    size_t length = decode(bytes).bytes;
    if (length > 0) {
      out += bytes.substr(0, length);
    } else {
      length = 1;
      while (length < std::min<size_t>(4, bytes.size()) && decode(bytes.substr(0, length + 1)).incomplete) ++length;
      append(0xFFFD, out);
    }
    bytes.remove_prefix(length);
  }
  return out;
}

std::string name_of(char32_t code_point) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "U+%04X", static_cast<unsigned>(code_point));
  return buffer;
}

std::string invalid_message(std::string_view rest, std::string_view origin, long long offset) {
  char byte[8];
  std::snprintf(byte, sizeof byte, "0x%02x", static_cast<unsigned>(static_cast<unsigned char>(rest[0])));
  return text(origin, ": not valid UTF-8 at byte offset ", offset, " (found ", byte,
              decode(rest).incomplete ? ", a character cut off by the end" : "",
              "); convert it, for instance with iconv -t UTF-8, or use the byte tokenizer");
}

}  // namespace dmuon::utf8
