// One field of a line of JSON: the same as the whole parser gives, in pieces of any size, and strict.
#include "data/json_field.h"
#include "dmuon/core/error.h"
#include "dmuon/core/json.h"
#include "dmuon/core/random.h"
#include "dmuon/core/text.h"
#include "support/catch.h"

using namespace dmuon;
using Catch::Contains;

namespace {

// What the field holds, read in pieces of `step` bytes, or "refused: ..." with the byte.
std::string field_of(const std::string& line, size_t step = 1000, const std::string& name = "text") {
  JsonField field(name);
  field.begin();
  std::string out;
  try {
    for (size_t at = 0; at < line.size(); at += step) field.feed(std::string_view(line).substr(at, step), out);
    field.finish();
  } catch (const JsonField::Failure& failure) {
    return text("refused at ", field.position(), ": ", failure.what);
  }
  return out;
}

}  // namespace

TEST_CASE("a field is decoded as the JSON parser decodes it, however the line is cut") {
  const std::vector<std::string> lines = {
      R"({"text":"plain"})",
      R"( { "text" : "" } )",
      R"({"id": -12.5e+3, "text": "a\"\\\/\b\f\n\r\tz", "rest": [true, false, null, {}, [], [[0.0E-1]]]})",
      R"({"text": "\u00e9\u4E2D\uD83D\uDE42 \u0000end"})",
      R"({"nested": {"text": "not this"}, "text": "this", "list": [{"text": 7}]})",
      R"({"te\u0078t": "an escaped key", "textual": "longer", "tex": 1, "": 2})",
      "{\"text\":\"h\xC3\xA9 \xF0\x9F\x99\x82\"}\r",
      R"({"0":0,"text":"x","n":[-0,1e5,10,0.25]})",
  };
  for (const std::string& line : lines) {
    INFO(line);
    const std::string expected = parse_json(line, "line").at("text").as_string();
    for (size_t step = 1; step <= line.size(); ++step) CHECK(field_of(line, step) == expected);
  }
  CHECK(field_of(R"({"text": "a", "body": "b"})", 1, "body") == "b");
}

TEST_CASE("what is no JSON object with that string is refused with its place") {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "the line is empty"},
      {"  ", "the line is empty"},
      {"[]", "at 0: found '['"},
      {"\"text\"", "expected a JSON object"},
      {"\xEF\xBB\xBF{\"text\":\"a\"}", "byte order mark"},
      {R"({"text":"a"} x)", "at 13: found 'x', expected the end of the line"},
      {R"({"text":"a"}{"text":"b"})", "expected the end of the line"},
      {R"({"text":"a")", "ends inside"},
      {R"({"text":"a)", "ends inside"},
      {R"({"text":"a\)", "ends inside"},
      {R"({"body":"a"})", "no field \"text\""},
      {R"({"a":{"text":"b"}})", "no field \"text\""},
      {R"({"text":7})", "\"text\" is not a string"},
      {R"({"text":null})", "\"text\" is not a string"},
      {R"({"text":["a"]})", "\"text\" is not a string"},
      {R"({"text":"a","text":"b"})", "occurs twice"},
      {R"({"text":"a",})", "a key in double quotes"},
      {R"({"text" "a"})", "a colon"},
      {R"({"text":"a" "b":1})", "a comma or }"},
      {R"({"text":"a","b":[1 2]})", "a comma or ]"},
      {R"({"text":"a","b":[1,]})", "a value"},
      {R"({"text":"a","b":[1})", "a comma or ]"},
      {R"({"text":"a","b":01})", "found '1'"},
      {R"({"text":"a","b":1.})", "a digit"},
      {R"({"text":"a","b":-})", "a digit"},
      {R"({"text":"a","b":1e})", "a digit"},
      {R"({"text":"a","b":+1})", "a value"},
      {R"({"text":"a","b":NaN})", "a value"},
      {R"({"text":"a","b":nul})", "true, false or null"},
      {R"({"text":"a","b":'c'})", "a value"},
      {R"({"text":"\x"})", "after a backslash"},
      {R"({"text":"\u12g4"})", "four hexadecimal digits"},
      {R"({"text":"\ud83d"})", "surrogate"},
      {R"({"text":"\ud83d\n"})", "surrogate"},
      {R"({"text":"\ud83dx"})", "surrogate"},
      {R"({"text":"\ude42"})", "surrogate"},
      {R"({"text":"\ud83d\ud83d"})", "surrogate"},
      {"{\"text\":\"a\tb\"}", "the byte 0x09"},
      {R"({"text":"a","b":)" + std::string(200, '[') + std::string(200, ']') + "}", "128 levels"},
  };
  for (const auto& [line, what] : bad) {
    INFO(line);
    const std::string whole = field_of(line);
    CHECK_THAT(whole, Contains("refused") && Contains(what));
    CHECK(field_of(line, 1) == whole);
    if (what.find("no field") == std::string::npos && what.find("not a string") == std::string::npos &&
        what.find("128") == std::string::npos && what.find("occurs twice") == std::string::npos)
      CHECK_THROWS_AS(parse_json(line, "line").at("text").as_string(), ConfigError);
  }
}

TEST_CASE("lines changed at random are taken or refused as the JSON parser does") {
  const std::string good = R"({"a": [1, -2.5e3, true, null], "text": "x\u00e9\n\ud83d\ude42y", "b": {"c": "d"}})";
  const std::string pool = "{}[]\",:\\u0123dex-+. tfn";
  int refused = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    const Random random(seed, RandomStream::test);
    std::string line = good;
    for (uint64_t i = 0; i < 1 + seed % 3; ++i) {
      const size_t at = random.below(line.size(), i, 0);
      const char c = pool[random.below(pool.size(), i, 1)];
      switch (random.below(3, i, 2)) {
        case 0:
          line[at] = c;
          break;
        case 1:
          line.insert(at, 1, c);
          break;
        default:
          line.erase(at, 1);
      }
    }
    INFO(line);
    const std::string found = field_of(line, 1 + seed % 7);
    std::string expected = "refused";
    bool repeated = false;
    try {
      const Json object = parse_json(line, "line");
      const Json* field = object.is_object() ? object.find("text") : nullptr;
      if (field != nullptr && field->is_string()) expected = field->as_string();
    } catch (const ConfigError& error) {
      repeated = std::string_view(error.what()).find("twice") != std::string_view::npos ||
                 std::string_view(error.what()).find("duplicate") != std::string_view::npos;
    }
    if (repeated) continue;  // of other keys: not looked for
    refused += expected == "refused";
    CHECK((expected == "refused" ? found.substr(0, 7) : found) == expected);
  }
  CHECK(refused > 500);
  CHECK(refused < 3900);
}
