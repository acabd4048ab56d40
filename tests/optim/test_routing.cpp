#include "dmuon/core/error.h"
#include "dmuon/optim/routing.h"
#include "support/catch.h"

using namespace dmuon;

namespace {

std::vector<RoutedParameter> small_gpt2() {
  return {{"embedding.token.weight", Shape{65, 32}, "embedding"},
          {"embedding.position.weight", Shape{16, 32}, "embedding"},
          {"blocks.0.attention.query.weight", Shape{32, 32}, "matrix"},
          {"blocks.0.attention.query.bias", Shape{32}, "vector"},
          {"blocks.0.attention.key.weight", Shape{32, 32}, "matrix"},
          {"blocks.0.mlp.up.weight", Shape{128, 32}, "matrix"},
          {"blocks.0.mlp.down.weight", Shape{32, 128}, "matrix"},
          {"blocks.0.norm.running_mean", Shape{32}, "buffer"},
          {"final_norm.weight", Shape{32}, "vector"},
          {"head.weight", Shape{65, 32}, "head"}};
}

RoutingRequest request() { return {{{"muon", true, 1}, {"adamw", false, 0}, {"sgd", false, 0}}, 0, 1, {}}; }

std::string error_of(const RoutingRequest& asked, const std::vector<RoutedParameter>& parameters) {
  try {
    route(asked, parameters);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("by role: hidden matrices on Muon, everything else on AdamW, buffers on nothing") {
  const auto parameters = small_gpt2();
  const Routing routing = route(request(), parameters);
  CHECK(routing.rule == std::vector<int>{1, 1, 0, 1, 0, 0, 0, -1, 1, 1});
  CHECK(routing.newton_schulz_calls == 4);
  CHECK(routing.share[0].tensors == 4);
  CHECK(routing.share[0].elements == 2 * 32 * 32 + 2 * 128 * 32);
  CHECK(routing.share[1].elements == 65 * 32 * 2 + 16 * 32 + 64);
  CHECK(routing.warnings.empty());
  // Order of declaration changes nothing for a parameter.
  std::vector<RoutedParameter> reversed(parameters.rbegin(), parameters.rend());
  const Routing other = route(request(), reversed);
  CHECK(std::vector<int>(other.rule.rbegin(), other.rule.rend()) == routing.rule);
}

TEST_CASE("a Qwen block: seven matrices on Muon one by one, its biases and norms not") {
  const std::vector<RoutedParameter> block = {
      {"embedding.token.weight", Shape{65, 40}, "embedding"},        {"blocks.0.attention_norm.weight", Shape{40}, "vector"},
      {"blocks.0.attention.query.weight", Shape{64, 40}, "matrix"},  {"blocks.0.attention.query.bias", Shape{64}, "vector"},
      {"blocks.0.attention.key.weight", Shape{32, 40}, "matrix"},    {"blocks.0.attention.value.weight", Shape{32, 40}, "matrix"},
      {"blocks.0.attention.query_norm.weight", Shape{16}, "vector"}, {"blocks.0.attention.output.weight", Shape{40, 64}, "matrix"},
      {"blocks.0.mlp.gate.weight", Shape{108, 40}, "matrix"},        {"blocks.0.mlp.up.weight", Shape{108, 40}, "matrix"},
      {"blocks.0.mlp.down.weight", Shape{40, 108}, "matrix"},        {"head.weight", Shape{65, 40}, "head"}};
  const Routing routing = route(request(), block);
  CHECK(routing.rule == std::vector<int>{1, 1, 0, 1, 0, 0, 1, 0, 0, 0, 0, 1});
  CHECK(routing.newton_schulz_calls == 7);
}

TEST_CASE("the first override that matches wins") {
  RoutingRequest asked = request();
  asked.overrides = {{"blocks.*.query.weight", 2}, {"blocks.0.attention.*.weight", 1}, {"head.weight", 0}};
  const Routing routing = route(asked, small_gpt2());
  CHECK(routing.rule == std::vector<int>{1, 1, 2, 1, 1, 0, 0, -1, 1, 0});
  CHECK(routing.newton_schulz_calls == 3);
}

TEST_CASE("overrides that decide nothing are errors that name them") {
  RoutingRequest asked = request();
  asked.overrides = {{"blocks.*.quer.weight", 1}};
  CHECK_THAT(error_of(asked, small_gpt2()), Catch::Contains("optimizer.overrides[0]") && Catch::Contains("blocks.*.quer.weight") &&
                                                Catch::Contains("matches no parameter"));
  asked.overrides = {{"head.weigth", 1}};
  CHECK_THAT(error_of(asked, small_gpt2()), Catch::Contains("\"head.weight\""));
  asked.overrides = {{"*", 1}, {"head.weight", 1}};
  CHECK_THAT(error_of(asked, small_gpt2()), Catch::Contains("optimizer.overrides[1]") && Catch::Contains("earlier override"));
  asked.overrides = {{"blocks.0.norm.running_mean", 1}};
  CHECK_THAT(error_of(asked, small_gpt2()), Catch::Contains("buffer"));
}

TEST_CASE("Muon refuses what is no matrix, naming parameter and override") {
  RoutingRequest asked = request();
  asked.overrides = {{"final_norm.*", 0}};
  CHECK_THAT(error_of(asked, small_gpt2()),
             Catch::Contains("final_norm.weight") && Catch::Contains("[32]") && Catch::Contains("final_norm.*") && Catch::Contains("muon"));
  CHECK_THAT(error_of(request(), {{"conv.weight", Shape{8, 3, 3}, "matrix"}}),
             Catch::Contains("conv.weight") && Catch::Contains("optimizer.matrix"));
  CHECK(error_of(request(), {{"conv.weight", Shape{8, 3, 3, 3}, "matrix"}}).empty());
  asked.overrides = {{"*", 0}};
  CHECK_FALSE(error_of(asked, {{"stack", Shape{8, 3, 3, 3}, "embedding"}}).empty());
  CHECK_THAT(error_of(request(), {{"x", Shape{2, 2}, "matirx"}}), Catch::Contains("matirx"));
}

TEST_CASE("a small share on the matrix rule is warned about") {
  const std::vector<RoutedParameter> parameters = {{"embedding", Shape{100, 10}, "embedding"}, {"w", Shape{10, 10}, "matrix"}};
  const Routing routing = route(request(), parameters);
  REQUIRE(routing.warnings.size() == 1);
  CHECK_THAT(routing.warnings.front(), Catch::Contains("9.1 %") && Catch::Contains("muon"));
  RoutingRequest element_wise = request();
  element_wise.matrix_rule = 2;
  CHECK(route(element_wise, parameters).warnings.empty());
  RoutingRequest two_muons = request();  // the share of every rule for matrices counts
  two_muons.rules.push_back({"muon", true, 1});
  two_muons.overrides = {{"embedding", 3}};
  CHECK(route(two_muons, parameters).warnings.empty());
}

TEST_CASE("the routing table") {
  const auto parameters = small_gpt2();
  const std::string table = route(request(), parameters).table(request(), parameters);
  INFO(table);
  CHECK_THAT(table, Catch::Contains("[32, 128]") && Catch::Contains("blocks.0.mlp.down.weight") && Catch::Contains("none") &&
                        Catch::Contains("10,240") && Catch::Contains("Newton-Schulz calls per step: 4"));
}

TEST_CASE("patterns") {
  CHECK(matches_pattern("*", ""));
  CHECK(matches_pattern("a*b*c", "a.b.b.c"));
  CHECK(matches_pattern("blocks.*.weight", "blocks.0.mlp.weight"));
  CHECK(matches_pattern("**x", "aax"));
  CHECK_FALSE(matches_pattern("blocks.*.weight", "blocks.0.mlp.weight2"));
  CHECK_FALSE(matches_pattern("a.b", "a_b"));
  CHECK_FALSE(matches_pattern("", "a"));
  CHECK_FALSE(matches_pattern("ab*", "a"));
}
