// The printable characters that byte-level vocabularies write bytes as: 0x21-0x7E, 0xA1-0xAC and 0xAE-0xFF stand for
// themselves, the other 68 bytes are U+0100 and up, in order.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dmuon::byte_symbols {

char32_t of(unsigned char byte);
// The bytes that a token of a vocabulary stands for; nothing if a character of it is no symbol. `token` is UTF-8.
std::optional<std::string> decode(std::string_view token);

}  // namespace dmuon::byte_symbols
