// Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// A value is a pure function of (seed, stream, x, y): nothing to store, nothing to drift, equal on every rank.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace dmuon {

// What a random number is for; part of the key, so that purposes never share a sequence.
enum class RandomStream : uint64_t { initialization = 1, dropout = 2, data_order = 3, data_offset = 4, sampling = 5, test = 6, tie = 7 };

// Philox4x32 with ten rounds on a 128-bit counter and a 64-bit key.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// SplitMix64's finaliser: mixes a word so that nearby inputs give unrelated outputs.
constexpr uint64_t mix64(uint64_t z) {
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}
// A stable 64-bit hash of a name (FNV-1a, then mixed): the coordinate of a parameter in initialisation.
uint64_t hash_name(std::string_view name);

class Random {
 public:
  Random(uint64_t seed, RandomStream stream, uint64_t substream = 0)
      : key_(mix64(mix64(seed) ^ mix64(static_cast<uint64_t>(stream) * 0x100000001b3ull + mix64(substream)))) {}

  std::array<uint32_t, 4> block(uint64_t x, uint64_t y = 0) const;
  uint64_t bits(uint64_t x, uint64_t y = 0) const;
  // Uniform in [0, 1) with 53 bits.
  double uniform(uint64_t x, uint64_t y = 0) const;
  // Standard normal by Box-Muller from one block; x indexes single values (values 2k and 2k+1 share a block).
  double normal(uint64_t x, uint64_t y = 0) const;
  // Uniform in [0, bound) without modulo bias beyond 2^-64.
  uint64_t below(uint64_t bound, uint64_t x, uint64_t y = 0) const;

  uint64_t key() const { return key_; }

 private:
  uint64_t key_;
};

}  // namespace dmuon
