#include "dmuon/core/dtype.h"

#include <cmath>
#include <limits>

#include "dmuon/core/error.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

float half_from_bits(uint16_t bits) {
  float16 value;
  value.bits = bits;
  return static_cast<float>(value);
}
float bfloat_from_bits(uint16_t bits) {
  bfloat16 value;
  value.bits = bits;
  return static_cast<float>(value);
}

}  // namespace

TEST_CASE("names and sizes") {
  const DType all[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16, DType::int64,
                       DType::int32,   DType::int16,   DType::int8,     DType::uint8};
  for (const DType dtype : all) CHECK(dtype_from_name(name_of(dtype)) == dtype);
  CHECK(size_of(DType::float64) == 8);
  CHECK(size_of(DType::bfloat16) == 2);
  CHECK(size_of(DType::uint8) == 1);
  CHECK(is_floating(DType::float16));
  CHECK_FALSE(is_floating(DType::int64));
  CHECK_THROWS_WITH(dtype_from_name("float8"), Catch::Contains("\"float8\"") && Catch::Contains("bfloat16"));
  CHECK_THROWS_AS(dtype_from_name(""), ConfigError);
}

TEST_CASE("every float16 and bfloat16 survives the way through float") {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float half = half_from_bits(static_cast<uint16_t>(bits)), brain = bfloat_from_bits(static_cast<uint16_t>(bits));
    if (std::isnan(half))
      REQUIRE(std::isnan(static_cast<float>(float16(half))));
    else
      REQUIRE(float16(half).bits == bits);
    if (std::isnan(brain))
      REQUIRE(std::isnan(static_cast<float>(bfloat16(brain))));
    else
      REQUIRE(bfloat16(brain).bits == bits);
  }
}

TEST_CASE("float16 rounds to nearest, ties to even, at every neighbouring pair") {
  for (uint32_t bits = 0; bits < 0x7bff; ++bits) {
    const float low = half_from_bits(static_cast<uint16_t>(bits)), high = half_from_bits(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;  // exact in float
    const uint32_t even = bits % 2 == 0 ? bits : bits + 1;
    REQUIRE(float16(middle).bits == even);
    REQUIRE(float16(-middle).bits == (even | 0x8000u));
    REQUIRE(float16(std::nextafter(middle, 0.0f)).bits == bits);
    REQUIRE(float16(std::nextafter(middle, 1e9f)).bits == bits + 1);
  }
}

TEST_CASE("float16 at its edges") {
  CHECK(float16(1.0f).bits == 0x3c00);
  CHECK(float16(-2.0f).bits == 0xc000);
  CHECK(float16(65504.0f).bits == 0x7bff);
  CHECK(float16(std::nextafter(65520.0f, 0.0f)).bits == 0x7bff);
  CHECK(float16(65520.0f).bits == 0x7c00);
  CHECK(float16(-1e30f).bits == 0xfc00);
  CHECK(float16(0x1p-24f).bits == 0x0001);
  CHECK(float16(0x1p-25f).bits == 0x0000);
  CHECK(float16(-0.0f).bits == 0x8000);
  CHECK(std::isinf(half_from_bits(0x7c00)));
  CHECK(std::isnan(static_cast<float>(float16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST_CASE("bfloat16 rounds to nearest, ties to even, and keeps NaN") {
  CHECK(bfloat16(1.0f).bits == 0x3f80);
  CHECK(bfloat16(1.00390625f).bits == 0x3f80);  // halfway to 0x3f81: to even
  CHECK(bfloat16(std::nextafter(1.00390625f, 2.0f)).bits == 0x3f81);
  CHECK(bfloat16(1.01171875f).bits == 0x3f82);                        // halfway between 0x3f81 and 0x3f82
  CHECK(bfloat16(std::numeric_limits<float>::max()).bits == 0x7f80);  // rounds to infinity
  CHECK(bfloat16(-0.0f).bits == 0x8000);
  CHECK(std::isnan(static_cast<float>(bfloat16(std::bit_cast<float>(0x7f800001u)))));  // its payload lies in the lower half
}
