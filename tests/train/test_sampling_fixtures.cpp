// Repetition penalty and filters beside what transformers made of the same logits (scripts/make_sampling_fixtures.py).
#include <cmath>

#include "dmuon/core/file.h"
#include "dmuon/core/json.h"
#include "dmuon/core/text.h"
#include "dmuon/train/generator.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace dmuon;

namespace {

Json fixture() {
  const std::string path = dmuon::testing::source_directory() + "/tests/train/fixtures/sampling.json";
  return parse_json(read_file(path), path);
}

std::vector<float> floats(const Json& array) {
  std::vector<float> values;
  for (const Json& value : array.as_array()) values.push_back(static_cast<float>(value.as_number()));
  return values;
}
std::vector<int32_t> ids(const Json& array) {
  std::vector<int32_t> values;
  for (const Json& value : array.as_array()) values.push_back(static_cast<int32_t>(value.as_integer()));
  return values;
}

}  // namespace

TEST_CASE("repetition penalty: every logit of transformers, to the bit") {
  const Json whole = fixture();
  size_t changed = 0;
  for (const Json& entry : whole.at("repetition").as_array()) {
    INFO("penalty " << entry.at("penalty").as_number() << ", history " << entry.at("history").dump());
    std::vector<float> logits = floats(entry.at("logits"));
    const std::vector<float> before = logits, expected = floats(entry.at("processed"));
    apply_repetition_penalty(logits, ids(entry.at("history")), entry.at("penalty").as_number());
    CHECK(logits == expected);
    changed += expected != before;
  }
  CHECK(changed >= 20);
}

TEST_CASE("temperature, top-k and top-p: the tokens that transformers keeps, as often as it would draw them") {
  const Json whole = fixture();
  constexpr int draws = 6000;  // a token of probability 0.005 is missed by all of them once in 10^13
  for (const Json& entry : whole.at("filters").as_array()) {
    GenerationOptions options;
    options.temperature = entry.at("temperature").as_number();
    options.top_k = entry.at("top_k").as_integer();
    options.top_p = entry.at("top_p").as_number();
    INFO("temperature " << options.temperature << ", top-k " << options.top_k << ", top-p " << options.top_p);
    const std::vector<float> logits = floats(entry.at("logits"));
    std::vector<int> counts(logits.size());
    for (uint64_t draw = 0; draw < draws; ++draw) ++counts[static_cast<size_t>(sample_token(logits, options, draw))];
    std::vector<int32_t> kept;
    for (size_t id = 0; id < counts.size(); ++id)
      if (counts[id] > 0) kept.push_back(static_cast<int32_t>(id));
    const std::vector<int32_t> expected = ids(entry.at("kept"));
    CHECK(kept == expected);
    const Json::Array& probabilities = entry.at("probabilities").as_array();
    REQUIRE(probabilities.size() == expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      const double mean = draws * probabilities[i].as_number();
      INFO("token " << expected[i]);
      CHECK(std::abs(counts[static_cast<size_t>(expected[i])] - mean) <= 5.0 * std::sqrt(mean) + 1.0);
    }
  }
}
