#include "data/byte_symbols.h"

#include <array>

#include "data/utf8.h"

namespace dmuon::byte_symbols {
namespace {

constexpr char32_t last_symbol = 0x143;

constexpr bool itself(int byte) { return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE; }

constexpr std::array<char32_t, 256> symbols = [] {
  std::array<char32_t, 256> out{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) out[static_cast<size_t>(byte)] = itself(byte) ? static_cast<char32_t>(byte) : next++;
  return out;
}();
static_assert(symbols[0xAD] == last_symbol);

constexpr std::array<int, last_symbol + 1> bytes = [] {
  std::array<int, last_symbol + 1> out{};
  for (int& byte : out) byte = -1;
  for (int byte = 0; byte < 256; ++byte) out[symbols[static_cast<size_t>(byte)]] = byte;
  return out;
}();

}  // namespace

char32_t of(unsigned char byte) { return symbols[byte]; }

std::optional<std::string> decode(std::string_view token) {
  std::string out;
  while (!token.empty()) {
    const utf8::Decoded next = utf8::decode(token);
    if (next.bytes == 0 || next.code_point > last_symbol || bytes[next.code_point] < 0) return std::nullopt;
    out += static_cast<char>(static_cast<unsigned char>(bytes[next.code_point]));
    token.remove_prefix(next.bytes);
  }
  return out;
}

}  // namespace dmuon::byte_symbols
