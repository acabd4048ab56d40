#include "dmuon/core/random.h"

#include <cmath>
#include <numbers>

namespace dmuon {

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (unsigned char byte : name) hash = (hash ^ byte) * 0x100000001b3ull;
  return mix64(hash);
}

std::array<uint32_t, 4> Random::block(uint64_t x, uint64_t y) const {
  return philox4x32({static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32), static_cast<uint32_t>(y), static_cast<uint32_t>(y >> 32)},
                    {static_cast<uint32_t>(key_), static_cast<uint32_t>(key_ >> 32)});
}

uint64_t Random::bits(uint64_t x, uint64_t y) const {
  const auto words = block(x, y);
  return (static_cast<uint64_t>(words[1]) << 32) | words[0];
}

double Random::uniform(uint64_t x, uint64_t y) const { return static_cast<double>(bits(x, y) >> 11) * 0x1p-53; }

double Random::normal(uint64_t x, uint64_t y) const {
  const auto words = block(x / 2, y);
  const double u1 = (static_cast<double>(((static_cast<uint64_t>(words[1]) << 32) | words[0]) >> 11) + 1.0) * 0x1p-53;
  const double u2 = static_cast<double>(((static_cast<uint64_t>(words[3]) << 32) | words[2]) >> 11) * 0x1p-53;
  const double radius = std::sqrt(-2.0 * std::log(u1));
  const double angle = 2.0 * std::numbers::pi * u2;
  return x % 2 == 0 ? radius * std::cos(angle) : radius * std::sin(angle);
}

namespace {
__extension__ typedef unsigned __int128 Wide;
}

uint64_t Random::below(uint64_t bound, uint64_t x, uint64_t y) const {
  return static_cast<uint64_t>((static_cast<Wide>(bits(x, y)) * bound) >> 64);
}

}  // namespace dmuon
