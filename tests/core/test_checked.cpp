#include "dmuon/core/checked.h"

#include "support/catch.h"

using namespace dmuon;

TEST_CASE("overflow is reported, not wrapped") {
  CHECK(checked_multiply<int64_t>(3, 5) == 15);
  CHECK(checked_multiply<int64_t>(INT64_MAX, 1) == INT64_MAX);
  CHECK_FALSE(checked_multiply<int64_t>(INT64_MAX / 2 + 1, 2).has_value());
  CHECK_FALSE(checked_multiply<int64_t>(INT64_MIN, -1).has_value());
  CHECK_FALSE(checked_multiply<uint64_t>(uint64_t{1} << 32, uint64_t{1} << 32).has_value());
  CHECK(checked_add<int64_t>(INT64_MAX, 0) == INT64_MAX);
  CHECK_FALSE(checked_add<int64_t>(INT64_MAX, 1).has_value());
  CHECK_FALSE(checked_add<int64_t>(INT64_MIN, -1).has_value());
}

TEST_CASE("casts keep value and sign or report") {
  CHECK(checked_cast<int32_t>(int64_t{INT32_MAX}) == INT32_MAX);
  CHECK_FALSE(checked_cast<int32_t>(int64_t{INT32_MAX} + 1).has_value());
  CHECK_FALSE(checked_cast<uint64_t>(int64_t{-1}).has_value());
  CHECK_FALSE(checked_cast<int64_t>(UINT64_MAX).has_value());
  CHECK(checked_cast<uint8_t>(255) == uint8_t{255});
  CHECK_FALSE(checked_cast<uint8_t>(256).has_value());
  CHECK_FALSE(checked_cast<uint8_t>(-1).has_value());
}

TEST_CASE("rounding up") {
  CHECK(divide_up(0, 8) == 0);
  CHECK(divide_up(1, 8) == 1);
  CHECK(divide_up(16, 8) == 2);
  CHECK(round_up(17, 8) == 24);
  CHECK(round_up(24, 8) == 24);
}
