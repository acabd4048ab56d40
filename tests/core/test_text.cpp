#include "dmuon/core/text.h"

#include <cmath>
#include <limits>

#include "support/catch.h"

using namespace dmuon;

TEST_CASE("bytes in decimal units with three digits") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(999) == "999 B");
  CHECK(format_bytes(1000) == "1.00 kB");
  CHECK(format_bytes(1'234'567) == "1.23 MB");
  CHECK(format_bytes(12'345'678) == "12.3 MB");
  CHECK(format_bytes(123'456'789) == "123 MB");
  CHECK(format_bytes(999'999) == "1.00 MB");
  CHECK(format_bytes(INT64_MAX) == "9.22 EB");
  CHECK(format_bytes(-2000) == "-2.00 kB");
}

TEST_CASE("counts are grouped by thousands") {
  CHECK(format_count(0) == "0");
  CHECK(format_count(999) == "999");
  CHECK(format_count(1000) == "1,000");
  CHECK(format_count(1'234'567) == "1,234,567");
  CHECK(format_count(-123) == "-123");
  CHECK(format_count(-1234) == "-1,234");
  CHECK(format_count(INT64_MIN) == "-9,223,372,036,854,775,808");
}

TEST_CASE("numbers are fixed where that reads better") {
  CHECK(format_number(0) == "0.0000");
  CHECK(format_number(-std::numeric_limits<double>::quiet_NaN()) == "nan");
  CHECK(format_number(3.14159, 2) == "3.14");
  CHECK(format_number(0.000123) == "1.230e-04");
  CHECK(format_number(-12345.5, 1) == "-12345.5");
  CHECK(format_number(1e9) == "1.000e+09");
  CHECK(format_number(std::nan("")) == "nan");
}

TEST_CASE("durations") {
  CHECK(format_duration(0) == "0.0s");
  CHECK(format_duration(4.25) == "4.2s");
  CHECK(format_duration(59.94) == "59.9s");
  CHECK(format_duration(59.96) == "1m00s");
  CHECK(format_duration(3725) == "1h02m05s");
  CHECK(format_duration(3599.7) == "1h00m00s");
  CHECK(format_duration(90000) == "25h00m00s");
  CHECK(format_duration(-1) == "unknown");
  CHECK(format_duration(INFINITY) == "unknown");
}

TEST_CASE("the nearest name, if one is near") {
  const std::vector<std::string> names = {"learning_rate", "momentum", "weight_decay", "steps"};
  CHECK(nearest("learnin_rate", names) == "learning_rate");
  CHECK(nearest("momnetum", names) == "momentum");  // a swap counts once
  CHECK(nearest("step", names) == "steps");
  CHECK(nearest("completely_else", names).empty());
  CHECK(nearest("x", {}).empty());
  CHECK(nearest(std::string(100'000, 'x'), names).empty());  // a hostile name costs little
}

TEST_CASE("joining") {
  CHECK(join({}, ", ").empty());
  CHECK(join({"a"}, ", ") == "a");
  CHECK(join({"a", "", "c"}, ", ") == "a, , c");
  CHECK(text("a", 1, 'c', std::string("d"), 2.5) == "a1cd2.5");
}

TEST_CASE("tables line up; numbers to the right; multi-byte characters take one column") {
  CHECK(format_table({{"name", "count"}, {"w\xC3\xA9", "5"}, {"long name", "1,234"}}) ==
        "name       count\n"
        "---------  -----\n"
        "w\xC3\xA9             5\n"
        "long name  1,234\n");
  CHECK(format_table({{"a", "b"}, {"x"}}) == "a  b\n-  -\nx\n");
  CHECK(format_table({}).empty());
}
