#include "dmuon/core/json.h"

#include <cmath>
#include <limits>

#include "dmuon/core/error.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

std::string refusal(std::string_view source, const JsonLimits& limits = {}) {
  try {
    parse_json(source, "origin.json", limits);
  } catch (const ConfigError& failure) {
    return failure.what();
  }
  return {};
}

}  // namespace

TEST_CASE("values keep order, kind and exact numbers") {
  const std::string source = R"({"z":1,"a":[true,false,null,"x",-3,2.5],"m":{"k":18446744073709551615,"n":-9223372036854775808}})";
  const Json value = parse_json(source, "t");
  CHECK(value.dump() == source);
  CHECK(value.as_object()[0].first == "z");
  CHECK(value.at("a").as_array()[5].as_number() == 2.5);
  CHECK(value.at("m").at("k").as_unsigned() == UINT64_MAX);
  CHECK(value.at("m").at("n").as_integer() == INT64_MIN);
  CHECK(parse_json(value.dump(2), "t") == value);
  CHECK(parse_json("[]", "t").dump(2) == "[]");
  CHECK(parse_json(" {} ", "t").dump() == "{}");
}

TEST_CASE("doubles read back to the same bits and stay doubles") {
  for (const double value : {0.1, 1.0 / 3, 1e300, -1e-300, 5e-324, 1.0, -0.0, 123456789012345680.0, 3.141592653589793}) {
    const Json read = parse_json(Json(value).dump(), "t");
    CHECK_FALSE(read.is_integer());
    CHECK(std::signbit(read.as_number()) == std::signbit(value));
    CHECK(read.as_number() == value);
  }
  CHECK(Json(std::numeric_limits<double>::infinity()).dump() == "null");
  CHECK(Json(std::nan("")).dump() == "null");
}

TEST_CASE("equal integers are equal however they were made") {
  CHECK(Json(uint64_t{5}) == Json(5));
  CHECK(parse_json("5", "t") == Json(uint64_t{5}));
  CHECK(Json(static_cast<uint64_t>(INT64_MAX)).as_integer() == INT64_MAX);
  CHECK(Json(INT64_MAX).dump() == "9223372036854775807");
  CHECK(Json(uint64_t{1} << 63).dump() == "9223372036854775808");
  CHECK_FALSE(Json(5) == Json(5.0));
}

TEST_CASE("strings keep every byte") {
  const std::string all =
      "quote\" backslash\\ newline\n tab\t return\r bell\a escape\x1b NUL" + std::string(1, '\0') + " \xC3\xA9 \xF0\x9F\x98\x80";
  CHECK(parse_json(Json(all).dump(), "t").as_string() == all);
  CHECK(parse_json(R"("\u00e9\ud83d\ude00\/")", "t").as_string() == "\xC3\xA9\xF0\x9F\x98\x80/");
}

TEST_CASE("what is not strict JSON is refused with origin, line and column") {
  CHECK_THAT(refusal("{\n  \"a\": 1,\n  x}"), Catch::StartsWith("origin.json:3:3: not valid JSON"));
  for (const char* source : {"",
                             " ",
                             "{",
                             "[1",
                             "[1,]",
                             "{\"a\":1,}",
                             "{a:1}",
                             "{'a':1}",
                             "[01]",
                             "[+1]",
                             "[1.]",
                             "[.5]",
                             "[1e]",
                             "[NaN]",
                             "[Infinity]",
                             "[-Infinity]",
                             "tru",
                             "nul",
                             "1 2",
                             "{} {}",
                             "[] x",
                             "// c\n1",
                             "/* c */ 1",
                             "[1] // c",
                             "\"\t\"",
                             "\"\\x41\"",
                             "\"\\ud800\"",
                             "\"\\udc00\\ud800\"",
                             "\"\xff\"",
                             "\"\xc0\x80\"",
                             "\"\xed\xa0\x80\"",
                             "\"\xf5\x80\x80\x80\"",
                             "\f{}",
                             "\v{}",
                             "[1e999]"}) {
    INFO(source);
    CHECK_THAT(refusal(source), Catch::StartsWith("origin.json"));
  }
  CHECK_THAT(refusal("\xEF\xBB\xBF{}"), Catch::Contains("byte order mark"));
  CHECK_THAT(refusal(std::string_view("{}\0garbage", 10)), Catch::Contains("NUL byte at offset 2"));
  CHECK_THAT(refusal(std::string_view("{}\0", 3)), Catch::Contains("NUL"));
}

TEST_CASE("duplicate keys are refused at every level, equal keys in different objects are not") {
  CHECK_THAT(refusal(R"({"a":1,"b":2,"a":3})"), Catch::Contains("duplicate key \"a\""));
  CHECK_THAT(refusal(R"([{"x":{"deep":1,"deep":1}}])"), Catch::Contains("duplicate key \"deep\""));
  CHECK_THAT(refusal(R"({"a":1,"\u0061":2})"), Catch::Contains("duplicate key \"a\""));
  CHECK(refusal(R"([{"a":1},{"a":{"a":2}}])").empty());
}

TEST_CASE("depth and count are limited") {
  const auto nested = [](int depth) { return std::string(static_cast<size_t>(depth), '[') + std::string(static_cast<size_t>(depth), ']'); };
  CHECK(refusal(nested(128)).empty());
  CHECK_THAT(refusal(nested(129)), Catch::Contains("128 levels"));
  CHECK_THAT(refusal(std::string(1'000'000, '[')), Catch::Contains("128 levels"));
  CHECK(refusal("[1,2,3]", {128, 4}).empty());
  CHECK_THAT(refusal("[1,2,3]", {128, 3}), Catch::Contains("more than 3"));
}

TEST_CASE("accessors name what was expected and found") {
  const auto message = [](auto&& action) -> std::string {
    try {
      action();
    } catch (const ConfigError& failure) {
      return failure.what();
    }
    return {};
  };
  CHECK(message([] { Json("x").as_integer(); }) == "expected integer, found string");
  CHECK(message([] { Json(1.5).as_integer(); }) == "expected integer, found number");
  CHECK(message([] { Json(1).as_bool(); }) == "expected boolean, found integer");
  CHECK(message([] { Json().as_object(); }) == "expected object, found null");
  CHECK(message([] { Json(-1).as_unsigned(); }) == "integer -1 is negative");
  CHECK(message([] { Json(UINT64_MAX).as_integer(); }) == "integer 18446744073709551615 is too large");
  CHECK(message([] { Json::object().at("missing"); }) == "missing key \"missing\"");
  CHECK(Json(3).as_number() == 3.0);
}

TEST_CASE("objects and arrays grow in place") {
  Json value;
  value.set("a", 1);
  value.set("b", "x");
  value.set("a", 2);
  CHECK(value.dump() == R"({"a":2,"b":"x"})");
  Json list;
  list.push_back(1);
  list.push_back(Json::object());
  CHECK(list.dump() == "[1,{}]");
  CHECK(value.find("c") == nullptr);
}
