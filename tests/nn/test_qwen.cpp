// The Qwen family against finite differences and itself: gradients, recomputation, caches, memory, settings.
#include <cmath>

#include "nn/tiny_model.h"
#include "support/test_device.h"

using namespace dmuon;
using namespace dmuon::test;
using Catch::Matchers::Contains;

namespace {

Json qwen2() {
  return parse_json(R"({"family": "qwen", "layers": 2, "heads": 4, "key_value_heads": 2, "width": 16, "feed_forward_width": 22,
                        "context_length": 9, "vocabulary_size": 11, "rotary_base": 100, "normalization_epsilon": 1e-3,
                        "initializer_deviation": 0.3})",
                    "tiny Qwen2");
}

// Heads wider than width / heads, as Qwen3 has.
Json qwen3() { return with(qwen2(), {{"width", 10}, {"head_width", 6}, {"attention_bias", false}, {"query_key_normalization", true}}); }

std::vector<Json> variants() {
  return {qwen2(), qwen3(), with(qwen2(), {{"tied_head", false}, {"key_value_heads", 4}}),
          with(qwen3(), {{"tied_head", false}, {"vocabulary_multiple", 8}, {"key_value_heads", 1}, {"attention_bias", true}})};
}

std::vector<double> logits_of(Instance& instance, const Tensor& tokens, const Tensor& positions, ModelCache* cache = nullptr,
                              bool last_only = false) {
  ExecutionContext context = make_context(instance.backend, nullptr, tokens.size(0));
  return to_doubles(instance.backend, instance.model->forward(context, tokens, positions, cache, last_only).value());
}

}  // namespace

TEST_CASE("gradients of Qwen models equal finite differences") {
  const auto backend = reference_backend();
  for (const Json& settings : variants()) {
    INFO(settings.dump());
    Instance instance(*backend, settings);
    Batch batch = random_batch(2, 5, 11);
    batch.targets[3] = -1;
    run(instance, batch, true, 0.7);
    const Values gradients = instance.gradients();
    for (const ParameterDeclaration& parameter : instance.model->inventory().parameters()) {
      INFO(parameter.name);
      const std::vector<double> values = to_doubles(*backend, parameter.state->value);
      const auto loss_along = [&](const std::vector<double>& direction, double step) {
        std::vector<double> moved = values;
        for (size_t i = 0; i < moved.size(); ++i) moved[i] += step * direction[i];
        from_doubles(*backend, moved, parameter.state->value);
        return 0.7 * sum(run(instance, batch, false));
      };
      const std::vector<double> direction = random_values(parameter.shape.elements(), 55);
      const double expected = (loss_along(direction, 1e-5) - loss_along(direction, -1e-5)) / 2e-5;
      CHECK(dot(direction, gradients.at(parameter.name)) == Approx(expected).epsilon(1e-6).margin(1e-8));
      from_doubles(*backend, values, parameter.state->value);
    }
  }
}

TEST_CASE("names, shapes and roles of Qwen's parameters: hidden matrices apart, everything else not") {
  const auto model = make_model(with(qwen3(), {{"layers", 1}, {"tied_head", false}, {"attention_bias", true}}));
  std::string list;
  for (const ParameterDeclaration& p : model->inventory().parameters())
    list += text(p.name, " ", p.shape.to_string(), " ", name_of(p.role), " ", model->inventory().units()[static_cast<size_t>(p.unit)].name,
                 "\n");
  CHECK(list ==
        "embedding.token.weight [11, 10] embedding embedding\n"
        "blocks.0.attention_norm.weight [10] vector blocks.0\n"
        "blocks.0.attention.query.weight [24, 10] matrix blocks.0\n"
        "blocks.0.attention.query.bias [24] vector blocks.0\n"
        "blocks.0.attention.key.weight [12, 10] matrix blocks.0\n"
        "blocks.0.attention.key.bias [12] vector blocks.0\n"
        "blocks.0.attention.value.weight [12, 10] matrix blocks.0\n"
        "blocks.0.attention.value.bias [12] vector blocks.0\n"
        "blocks.0.attention.query_norm.weight [6] vector blocks.0\n"
        "blocks.0.attention.key_norm.weight [6] vector blocks.0\n"
        "blocks.0.attention.output.weight [10, 24] matrix blocks.0\n"
        "blocks.0.mlp_norm.weight [10] vector blocks.0\n"
        "blocks.0.mlp.gate.weight [22, 10] matrix blocks.0\n"
        "blocks.0.mlp.up.weight [22, 10] matrix blocks.0\n"
        "blocks.0.mlp.down.weight [10, 22] matrix blocks.0\n"
        "final_norm.weight [10] vector head\n"
        "head.weight [11, 10] head head\n");
  const auto tied = make_model(qwen2());
  CHECK(tied->inventory().find("head.weight") == nullptr);
  CHECK(tied->inventory().units().front().name == "token_embedding");
  CHECK(tied->forward_order() == std::vector<int>{0, 1, 2, 3, 0});
  CHECK(tied->backward_order() == std::vector<int>{3, 0, 2, 1, 0});
}

TEST_CASE("recomputed Qwen blocks give the same bits, in every host mode") {
  for (const Json& settings : variants()) {
    const auto pass = [&](HostMode mode, bool recompute) {
      const auto backend = reference_backend(mode, 3);
      Instance instance(*backend, settings);
      instance.model->set_recompute(recompute);
      run(instance, random_batch(2, 6, 11), true, 0.5);
      return instance.gradients();
    };
    const Values plain = pass(HostMode::normal, false);
    CHECK(pass(HostMode::normal, true) == plain);
    CHECK(pass(HostMode::guarded, false) == plain);
    CHECK(pass(HostMode::deferred, true) == plain);
  }
}

TEST_CASE("generation of a Qwen model with a cache equals the full forward") {
  for (const bool host : {false, true}) {
    const auto backend = host ? make_cpu_backend({}) : reference_backend();
    for (const Json& settings : variants()) {
      INFO(settings.dump() << (host ? " on the CPU backend" : ""));
      Instance instance(*backend, settings, host ? DType::float32 : DType::float64);
      const int64_t batch = 3, length = 7;
      const Batch data = random_batch(batch, length, 11);
      const std::vector<double> full =
          logits_of(instance, index_tensor(*backend, Shape{batch, length}, data.tokens), positions_of(*backend, batch, 0, length));
      const auto columns = static_cast<int64_t>(full.size()) / (batch * length);
      ModelCache cache = instance.model->make_cache(*backend, batch, length);
      for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 3}, {3, 1}, {4, 2}, {6, 1}}) {
        std::vector<int32_t> tokens;
        for (int64_t b = 0; b < batch; ++b)
          for (int64_t t = 0; t < count; ++t) tokens.push_back(data.tokens[static_cast<size_t>(b * length + first + t)]);
        const bool last_only = first == 4;
        const std::vector<double> part = logits_of(instance, index_tensor(*backend, Shape{batch, count}, tokens),
                                                   positions_of(*backend, batch, first, count), &cache, last_only);
        std::vector<double> expected;
        for (int64_t b = 0; b < batch; ++b)
          for (int64_t t = last_only ? count - 1 : 0; t < count; ++t)
            for (int64_t j = 0; j < columns; ++j) expected.push_back(full[static_cast<size_t>((b * length + first + t) * columns + j)]);
        REQUIRE(part.size() == expected.size());
        CHECK(relative_difference(part, expected) < (host ? 1e-5 : 1e-12));
      }
    }
  }
}

TEST_CASE("Qwen agrees with the reference", "[device]") {
  const auto reference = reference_backend(), host = dmuon::testing::make_test_backend();
  for (const Json& settings : variants()) {
    INFO(settings.dump());
    Instance exact(*reference, settings), fast(*host, settings, DType::float32);
    const Batch batch = random_batch(2, 9, 11);
    CHECK(relative_difference(run(fast, batch, true, 0.1), run(exact, batch, true, 0.1)) < 1e-5);
    const Values expected = exact.gradients();
    for (const auto& [name, gradient] : fast.gradients()) {
      INFO(name);
      if (name.find("key.bias") == std::string::npos) CHECK(relative_difference(gradient, expected.at(name)) < 1e-4);
    }
  }
}

TEST_CASE("rotary positions tell only distances: shifted positions change no logits") {
  const auto backend = reference_backend();
  Instance instance(*backend, qwen3());
  const Tensor tokens = index_tensor(*backend, Shape{1, 5}, {3, 1, 4, 1, 5});
  const std::vector<double> here = logits_of(instance, tokens, positions_of(*backend, 1, 0, 5));
  CHECK(relative_difference(logits_of(instance, tokens, positions_of(*backend, 1, 1000, 5)), here) < 1e-4);  // angles are float32
  CHECK(relative_difference(logits_of(instance, tokens, index_tensor(*backend, Shape{1, 5}, {0, 2, 4, 6, 8})), here) > 1e-3);
}

TEST_CASE("a pass of a Qwen model leaves no activation behind") {
  const auto backend = reference_backend();
  Instance instance(*backend, qwen3());
  for (const bool recompute : {false, true}) {
    instance.model->set_recompute(recompute);
    run(instance, random_batch(2, 6, 11), true);
    run(instance, random_batch(2, 6, 11), false);
    CHECK(backend->allocator().statistics()[MemoryCategory::activations].current == 0);
  }
}

TEST_CASE("settings of a Qwen model that do not fit are named") {
  const auto make = [](std::initializer_list<std::pair<const char*, Json>> changes) { return make_model(with(qwen2(), changes)); };
  CHECK_THROWS_AS(make({{"heads", 5}}), ConfigError);
  CHECK_THROWS_WITH(make({{"heads", 5}}), Contains("model.heads = 5") && Contains("model.head_width"));
  CHECK_THROWS_WITH(make({{"key_value_heads", 3}}), Contains("model.key_value_heads = 3") && Contains("model.heads = 4"));
  CHECK_THROWS_WITH(make({{"head_width", 5}}), Contains("model.head_width = 5") && Contains("even"));
  CHECK_THROWS_WITH(make({{"feed_forward_width", -1}}), Contains("model.feed_forward_width"));
  CHECK_THROWS_WITH(make({{"rotary_base", 0.5}}), Contains("model.rotary_base"));
  CHECK_THROWS_WITH(make({{"layers", 0}}), Contains("model.layers"));
}

TEST_CASE("GPT-2 takes another feed-forward width") {
  const auto model = make_model(with(tiny_settings(), {{"feed_forward_width", 10}}));
  CHECK(model->inventory().find("blocks.1.mlp.up.weight")->shape == Shape({10, 6}));
  CHECK(model->inventory().find("blocks.1.mlp.down.weight")->shape == Shape({6, 10}));
  CHECK(make_model(tiny_settings())->inventory().find("blocks.1.mlp.up.weight")->shape == Shape({24, 6}));
}
