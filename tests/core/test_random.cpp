#include "dmuon/core/random.h"

#include <cmath>
#include <set>
#include <vector>

#include "support/catch.h"

using namespace dmuon;

// Known answers of the authors' library Random123 (kat_vectors, philox4x32-10).
TEST_CASE("Philox4x32-10 gives the published vectors") {
  using Block = std::array<uint32_t, 4>;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr uint32_t ones = 0xffffffff;
  CHECK(philox4x32({ones, ones, ones, ones}, {ones, ones}) == Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("mix64 is SplitMix64's output function") { CHECK(mix64(0) == 0xe220a8397b1dcdafull); }

TEST_CASE("names hash by FNV-1a, mixed") {
  CHECK(hash_name("a") == mix64(0xaf63dc4c8601ec8cull));
  CHECK(hash_name("") == mix64(0xcbf29ce484222325ull));
  CHECK(hash_name("block.0.weight") != hash_name("block.1.weight"));
}

TEST_CASE("a value is a function of seed, stream, substream and coordinates, and differs with each") {
  const Random random(1, RandomStream::dropout, 2);
  CHECK(random.bits(3, 4) == Random(1, RandomStream::dropout, 2).bits(3, 4));
  std::set<uint64_t> values;
  for (const auto& other : {random, Random(2, RandomStream::dropout, 2), Random(1, RandomStream::sampling, 2),
                            Random(1, RandomStream::dropout, 3), Random(2, RandomStream::dropout, 1)})
    values.insert(other.bits(3, 4));
  for (const uint64_t x : {uint64_t{3}, uint64_t{3} << 32, uint64_t{4}})
    for (const uint64_t y : {uint64_t{5}, uint64_t{5} << 32}) values.insert(random.bits(x, y));
  CHECK(values.size() == 11);
}

TEST_CASE("uniform, normal and bounded values have their distributions") {
  const Random random(42, RandomStream::test);
  constexpr int count = 200'000;
  double uniform_sum = 0, normal_sum = 0, normal_square = 0, normal_fourth = 0, neighbours = 0;
  std::vector<int> histogram(7);
  for (uint64_t i = 0; i < count; ++i) {
    const double u = random.uniform(i, 1), z = random.normal(i, 2);
    REQUIRE((u >= 0.0 && u < 1.0));
    uniform_sum += u;
    normal_sum += z;
    normal_square += z * z;
    normal_fourth += z * z * z * z;
    if (i % 2 == 1) neighbours += z * random.normal(i - 1, 2);
    ++histogram.at(random.below(7, i, 3));
  }
  // Five standard deviations of each mean.
  CHECK(std::fabs(uniform_sum / count - 0.5) < 5 * std::sqrt(1.0 / 12 / count));
  CHECK(std::fabs(normal_sum / count) < 5 * std::sqrt(1.0 / count));
  CHECK(std::fabs(normal_square / count - 1) < 5 * std::sqrt(2.0 / count));
  CHECK(std::fabs(normal_fourth / count - 3) < 5 * std::sqrt(96.0 / count));
  CHECK(std::fabs(neighbours / (count / 2.0)) < 5 * std::sqrt(2.0 / count));  // the two values of one block
  double chi_square = 0;
  for (const int found : histogram) chi_square += std::pow(found - count / 7.0, 2) / (count / 7.0);
  CHECK(chi_square < 30);  // six degrees of freedom: p = 4e-5
  CHECK(random.below(1, 5) == 0);
  CHECK(random.below(UINT64_MAX, 5) < UINT64_MAX);
}
