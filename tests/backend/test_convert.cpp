#include "backend/convert.h"

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "dmuon/core/error.h"
#include "dmuon/core/random.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

template <class To, class From>
To convert_value(From value) {
  To result;
  convert_elements(&value, DTypeOf<From>::value, &result, DTypeOf<To>::value, 1);
  return result;
}

template <class To, class From>
std::vector<To> convert_all(const std::vector<From>& values) {
  std::vector<To> results(values.size());
  convert_elements(values.data(), DTypeOf<From>::value, results.data(), DTypeOf<To>::value, static_cast<int64_t>(values.size()));
  return results;
}

template <class Short>
std::vector<Short> all_values() {
  std::vector<Short> values(65536);
  for (size_t i = 0; i < values.size(); ++i) values[i].bits = static_cast<uint16_t>(i);
  return values;
}

// Wide and narrow again gives the same bits; a NaN stays some NaN.
template <class Short, class Wide>
void check_round_trip() {
  const auto values = all_values<Short>();
  const auto wide = convert_all<Wide>(values);
  const auto narrow = convert_all<Short>(wide);
  size_t wrong = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const float value = static_cast<float>(values[i]);
    const bool same = std::isnan(value) ? std::isnan(wide[i]) && std::isnan(static_cast<float>(narrow[i]))
                                        : static_cast<float>(wide[i]) == value && narrow[i].bits == values[i].bits;
    wrong += same ? 0 : 1;
  }
  CHECK(wrong == 0);
}

// Every boundary between neighbouring positive finite values a < b: the middle goes to the even one, its neighbours to
// the nearer one. The middle is exact in Wide.
template <class Short, class Wide>
void check_ties() {
  const auto values = all_values<Short>();
  size_t wrong = 0;
  for (size_t i = 0; i + 1 < 32768 && std::isfinite(static_cast<float>(values[i + 1])); ++i) {
    const auto low = static_cast<Wide>(static_cast<float>(values[i])), high = static_cast<Wide>(static_cast<float>(values[i + 1]));
    const Wide middle = (low + high) / 2;
    const auto down = std::nextafter(middle, low), up = std::nextafter(middle, high);
    wrong += convert_value<Short>(middle).bits == (i % 2 == 0 ? i : i + 1) ? 0 : 1;
    wrong += down == low || convert_value<Short>(down).bits == i ? 0 : 1;
    wrong += up == high || convert_value<Short>(up).bits == i + 1 ? 0 : 1;
    wrong += convert_value<Short>(-middle).bits == ((i % 2 == 0 ? i : i + 1) | 0x8000) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("every 16-bit value survives widening and narrowing") {
  check_round_trip<bfloat16, float>();
  check_round_trip<bfloat16, double>();
  check_round_trip<float16, float>();
  check_round_trip<float16, double>();
}

TEST_CASE("narrowing rounds to nearest even, once") {
  check_ties<float16, float>();
  check_ties<float16, double>();
  check_ties<bfloat16, double>();
  // Just above the middle of two bfloat16 values, but only in double: rounding to float first would give the tie.
  const double above = 1.0 + 0x1p-8 + 0x1p-40;
  CHECK(static_cast<float>(convert_value<bfloat16>(above)) == 1.0f + 0x1p-7f);
  CHECK(static_cast<float>(convert_value<bfloat16>(static_cast<float>(above))) == 1.0f);
}

TEST_CASE("infinities, overflow, zeros and NaN narrow to what they are") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  for (double value : {infinity, 1e300, 3.4e38 * 10}) {
    CHECK(static_cast<float>(convert_value<bfloat16>(value)) == std::numeric_limits<float>::infinity());
    CHECK(static_cast<float>(convert_value<float16>(-value)) == -std::numeric_limits<float>::infinity());
  }
  CHECK(convert_value<float16>(65519.0f).bits == 0x7bff);
  CHECK(convert_value<float16>(65520.0f).bits == 0x7c00);
  CHECK(convert_value<float16>(-0.0f).bits == 0x8000);
  CHECK(convert_value<bfloat16>(-1e-300).bits == 0x8000);
  for (uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0x7fc00000u}) {
    const float nan = std::bit_cast<float>(bits);
    CHECK(std::isnan(static_cast<float>(convert_value<bfloat16>(nan))));
    CHECK(std::isnan(static_cast<float>(convert_value<float16>(nan))));
    CHECK(std::isnan(convert_value<double>(nan)));
    CHECK(std::isnan(static_cast<float>(convert_value<bfloat16>(static_cast<double>(nan)))));
  }
}

TEST_CASE("the vectorised conversions agree with the scalar types") {
  const Random random(1, RandomStream::test);
  std::vector<float> values(10007);
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::bit_cast<float>(static_cast<uint32_t>(random.bits(i)));
  const auto brains = convert_all<bfloat16>(values);
  const auto halves = convert_all<float16>(values);
  size_t wrong = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) continue;
    wrong += brains[i].bits == bfloat16(values[i]).bits ? 0 : 1;
    wrong += halves[i].bits == float16(values[i]).bits ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("integers convert to nothing but themselves") {
  int32_t integer = 3, copy = 0;
  float single = 0;
  convert_elements(&integer, DType::int32, &copy, DType::int32, 1);
  CHECK(copy == 3);
  CHECK_THROWS_AS(convert_elements(&integer, DType::int32, &single, DType::float32, 1), ShapeError);
  CHECK_THROWS_AS(convert_elements(&single, DType::float32, &integer, DType::int64, 1), ShapeError);
}
