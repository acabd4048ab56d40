// Strict UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace dmuon::utf8 {

struct Decoded {
  char32_t code_point = 0;
  size_t bytes = 0;         // 0: the text doesn't start with a character
  bool incomplete = false;  // bytes is 0 because the text ends inside a character that is right so far
};
// The character at the start of non-empty `text`.
Decoded decode(std::string_view text);
void append(char32_t code_point, std::string& out);
// Length of `text` without an unfinished character at its end.
size_t complete_prefix(std::string_view text);
// Offset of the first byte that is not UTF-8, or the length.
size_t valid_length(std::string_view text);
// `bytes` with U+FFFD for what is not UTF-8: one for every longest stretch that begins a character, else one a byte (as the
// Unicode standard recommends and the Rust and Python libraries do).
std::string replace_invalid(std::string_view bytes);
// "U+00E9"
std::string name_of(char32_t code_point);
// "byte 0xff at offset 12 of FILE isn't valid UTF-8 ...", for a DataError.
std::string invalid_message(std::string_view rest, std::string_view origin, long long offset);

}  // namespace dmuon::utf8
