// Sampling against naive twins, and texts of a tiny model: alone, together, without a cache, past the context.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "dmuon/core/error.h"
#include "dmuon/train/generator.h"
#include "nn/tiny_model.h"
#include "support/catch.h"
#include "support/test_device.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

std::vector<float> random_logits(size_t count, uint64_t salt) {
  const std::vector<double> values = random_values(static_cast<int64_t>(count), salt, 2.0);
  return {values.begin(), values.end()};
}

// The distribution as its definition says it: sort everything, keep k, keep the smallest set with share p of what is left.
std::vector<double> naive_distribution(const std::vector<float>& logits, const GenerationOptions& options) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  if (options.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(options.top_k)));
  std::vector<double> weights;
  for (size_t id : order) weights.push_back(std::exp(static_cast<double>(logits[id]) / options.temperature));
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  size_t kept = 0;
  for (double mass = 0.0; kept < weights.size() && (kept == 0 || mass < options.top_p * all);) mass += weights[kept++];
  const double sum = std::accumulate(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(kept), 0.0);
  std::vector<double> distribution(logits.size(), 0.0);
  for (size_t i = 0; i < kept; ++i) distribution[order[i]] = weights[i] / sum;
  return distribution;
}

Json settings() { return with(tiny_settings(), {{"context_length", 24}, {"vocabulary_size", 23}, {"width", 12}}); }

Json tiny_qwen() {
  return parse_json(R"({"family": "qwen", "layers": 2, "heads": 4, "key_value_heads": 2, "width": 12, "head_width": 6,
                        "feed_forward_width": 20, "context_length": 24, "vocabulary_size": 23, "query_key_normalization": true,
                        "initializer_deviation": 0.3})",
                    "tiny");
}

const std::vector<std::vector<int32_t>> prompts{{1, 2, 3}, {7}, {4, 4, 9}, {1, 2, 3}, {20, 0}};

}  // namespace

TEST_CASE("sampling: every option gives its distribution, by counting") {
  const std::vector<float> logits = random_logits(13, 4);
  const auto temperature = GENERATE(0.5, 1.0, 1.7);
  const auto top_k = GENERATE(int64_t{0}, int64_t{1}, int64_t{4}, int64_t{13}, int64_t{50});
  const auto top_p = GENERATE(0.0, 0.6, 0.95, 1.0);
  GenerationOptions options;
  options.temperature = temperature, options.top_k = top_k, options.top_p = top_p;
  const std::vector<double> expected = naive_distribution(logits, options);
  std::vector<int> counts(logits.size());
  constexpr int draws = 8000;
  for (uint64_t draw = 0; draw < draws; ++draw) ++counts[static_cast<size_t>(sample_token(logits, options, draw))];
  for (size_t id = 0; id < logits.size(); ++id) {
    INFO("temperature " << temperature << ", top-k " << top_k << ", top-p " << top_p << ", id " << id);
    if (expected[id] == 0.0) CHECK(counts[id] == 0);
    CHECK(std::abs(counts[id] - draws * expected[id]) <= 5.0 * std::sqrt(draws * expected[id]) + 1.0);
  }
}

TEST_CASE("sampling: equal logits are kept by the order of their ids; the largest must be a number") {
  GenerationOptions options;
  options.temperature = 1.0, options.top_k = 2;
  std::vector<float> logits{0.0f, 1.0f, 1.0f, 1.0f};
  for (uint64_t draw = 0; draw < 60; ++draw) CHECK(sample_token(logits, options, draw) < 3);
  options.temperature = 0.0;
  CHECK(sample_token(logits, options, 0) == 1);
  logits[2] = std::nanf("");
  CHECK_THROWS_AS(sample_token(logits, options, 0), NumericalError);
  logits[2] = std::numeric_limits<float>::infinity();
  CHECK_THROWS_AS(sample_token(logits, options, 0), NumericalError);
}

TEST_CASE("repetition penalty: each id once, by the sign of its logit") {
  std::vector<float> logits{2.0f, -2.0f, 3.0f, 0.0f};
  apply_repetition_penalty(logits, std::vector<int32_t>{0, 1, 0, 3, 99}, 2.0);
  CHECK(logits == std::vector<float>{1.0f, -4.0f, 3.0f, 0.0f});
  apply_repetition_penalty(logits, std::vector<int32_t>{2}, 1.0);
  CHECK(logits == std::vector<float>{1.0f, -4.0f, 3.0f, 0.0f});
}

TEST_CASE("texts: the same alone and together, with and without a cache, for any option", "[device]") {
  const auto backend = dmuon::testing::make_test_backend();
  Instance instance(*backend, settings(), DType::float32);
  GenerationOptions options;
  options.tokens = 17;
  options.temperature = GENERATE(0.0, 1.0);
  options.repetition_penalty = GENERATE(1.0, 1.3);
  std::vector<std::vector<int32_t>> heard(prompts.size());
  const GenerationResult together = generate_batch(*backend, *instance.model, prompts, options, [&](size_t prompt, int32_t id) {
    heard[prompt].push_back(id);
    return true;
  });
  CHECK(heard == together.tokens);
  CHECK(together.prompt_tokens == 12);
  CHECK(together.generated_tokens == 5 * 16);
  options.cache = false;
  CHECK(generate_batch(*backend, *instance.model, prompts, options).tokens == together.tokens);
  for (size_t i = 0; i < prompts.size(); ++i) {
    options.sequence = i;
    for (const bool cache : {true, false}) {
      options.cache = cache;
      CHECK(generate(*backend, *instance.model, prompts[i], options) == together.tokens[i]);
    }
  }
  if (options.temperature > 0.0)
    CHECK(together.tokens[0] != together.tokens[3]);  // two samples of one prompt
  else
    CHECK(together.tokens[0] == together.tokens[3]);
}

TEST_CASE("prompts of very different lengths in one batch: each the text that it gives alone") {
  const auto backend = make_cpu_backend();
  // GPT-2's learned positions and Qwen's rotary ones with grouped keys; a full context is read again at once.
  for (const bool qwen : {false, true}) {
    Instance instance(*backend, qwen ? tiny_qwen() : settings(), DType::float32);
    std::vector<std::vector<int32_t>> mixed(6);
    const std::vector<size_t> lengths{17, 1, 24, 3, 1, 23};
    for (size_t i = 0; i < mixed.size(); ++i)
      for (size_t k = 0; k < lengths[i]; ++k) mixed[i].push_back(static_cast<int32_t>((5 * i + 3 * k * k + 1) % 23));
    for (const double temperature : {0.0, 0.9})
      for (const int64_t tokens : {int64_t{1}, int64_t{7}, int64_t{40}}) {
        INFO((qwen ? "qwen" : "gpt2") << ", temperature " << temperature << ", " << tokens << " tokens");
        GenerationOptions options;
        options.tokens = tokens, options.temperature = temperature, options.seed = 5;
        // One ends early by itself, so that those behind it move up in the cache.
        std::vector<size_t> seen(mixed.size());
        const auto ends = [&](size_t prompt, int32_t) { return ++seen[prompt] < (prompt == 1 ? 5 : 1000); };
        const GenerationResult together = generate_batch(*backend, *instance.model, mixed, options, ends);
        for (size_t i = 0; i < mixed.size(); ++i) {
          INFO("prompt " << i);
          GenerationOptions alone = options;
          alone.sequence = i;
          if (i == 1) alone.tokens = std::min<int64_t>(tokens, 5);
          CHECK(generate(*backend, *instance.model, mixed[i], alone) == together.tokens[i]);
        }
        GenerationOptions uncached = options;
        uncached.cache = false;
        std::fill(seen.begin(), seen.end(), 0);
        CHECK(generate_batch(*backend, *instance.model, mixed, uncached, ends).tokens == together.tokens);
      }
  }
}

TEST_CASE("texts that end early leave the others as they are", "[device]") {
  const auto backend = dmuon::testing::make_test_backend();
  Instance instance(*backend, settings(), DType::float32);
  GenerationOptions options;
  options.tokens = 15;
  const auto full = generate_batch(*backend, *instance.model, prompts, options).tokens;
  const std::vector<size_t> lengths{3, 15, 1, 7, 15};
  std::vector<size_t> seen(prompts.size());
  const auto cut = generate_batch(*backend, *instance.model, prompts, options, [&](size_t prompt, int32_t) {
                     return ++seen[prompt] < lengths[prompt];
                   }).tokens;
  for (size_t i = 0; i < prompts.size(); ++i)
    CHECK(cut[i] == std::vector<int32_t>(full[i].begin(), full[i].begin() + static_cast<std::ptrdiff_t>(lengths[i])));
}

TEST_CASE("a text goes on when its context is full, the last half read again") {
  const auto backend = make_cpu_backend();
  Instance instance(*backend, settings(), DType::float32);
  GenerationOptions options;
  options.tokens = 60;
  const std::vector<int32_t> cached = generate(*backend, *instance.model, prompts[0], options);
  CHECK(cached.size() == 60);
  options.cache = false;
  CHECK(generate(*backend, *instance.model, prompts[0], options) == cached);
  options.cache = true;  // beside another of its length: both outgrow the context, at different steps
  CHECK(generate_batch(*backend, *instance.model, std::vector<std::vector<int32_t>>{prompts[0], prompts[2]}, options).tokens[0] == cached);
}

TEST_CASE("prompts that the model cannot read are refused by their numbers", "[device]") {
  const auto backend = dmuon::testing::make_test_backend();
  Instance instance(*backend, settings(), DType::float32);
  GenerationOptions options;
  options.tokens = 4;
  const auto refusal = [&](std::vector<std::vector<int32_t>> bad) -> std::string {
    try {
      generate_batch(*backend, *instance.model, bad, options);
      return "none";
    } catch (const DataError& error) {
      return error.what();
    }
  };
  using Catch::Contains;
  CHECK_THAT(refusal({{}}), Contains("empty"));
  CHECK_THAT(refusal({{1, 23}}), Contains("23") && Contains("vocabulary"));
  CHECK_THAT(refusal({{-1}}), Contains("-1"));
  CHECK_THAT(refusal({std::vector<int32_t>(25, 1)}), Contains("25") && Contains("24"));
  CHECK(refusal({std::vector<int32_t>(24, 1)}) == "none");
}
