// What rules with a vote refuse, and how they describe themselves.
#include "dmuon/core/error.h"
#include "optim/all_vote_rules.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

TEST_CASE("voting rules refuse what does not fit, naming the parameter", "[errors]") {
  const auto backend = reference_backend();
  Stream& stream = backend->compute_stream();
  for (const Named& rule : all_rules()) {
    const auto made = rule.make();
    CHECK(made->agreement() == Agreement::vote);
    UpdateItem item;
    item.name = "blocks.1.weight";
    item.parameter = tensor_of(*backend, normal_values(1, 12), Shape{3, 4}, DType::float32);
    for (size_t s = 0; s < made->state().size(); ++s)
      item.state.push_back(tensor_of(*backend, Values(12, 0.0), Shape{3, 4}, DType::float32));
    made->prepare(*backend, stream, {1, 0.1, 1.0});
    INFO(rule.name);
    CHECK_THROWS_WITH(made->local(*backend, stream, {&item, 1}), Catch::Contains("blocks.1.weight") && Catch::Contains("gradient"));
    CHECK_THROWS_WITH(made->global(*backend, stream, {&item, 1}), Catch::Contains("blocks.1.weight") && Catch::Contains("no vote"));
    item.gradient = tensor_of(*backend, normal_values(2, 12), Shape{3, 4}, DType::float32);
    item.vote = vote_of(*backend, {item.gradient.flat(0, 11)}, {0, 11, 4, 16384}, 1, 1);
    CHECK_THROWS_AS(made->global(*backend, stream, {&item, 1}), ShapeError);
    CHECK_THROWS_WITH(made->global(*backend, stream, {&item, 1}), Catch::Contains("blocks.1.weight") && Catch::Contains("11 elements"));
    if (made->state().empty()) continue;
    item.state.pop_back();
    item.vote = vote_of(*backend, {item.gradient}, {0, 12, 4, 16384}, 1, 1);
    const bool local = made->state()[0].local;
    if (local) CHECK_THROWS_WITH(made->local(*backend, stream, {&item, 1}), Catch::Contains("blocks.1.weight brings 0 state"));
    if (!local) CHECK_THROWS_WITH(made->global(*backend, stream, {&item, 1}), Catch::Contains("blocks.1.weight brings 1 state"));
  }
  UpdateItem vector;
  vector.name = "blocks.0.bias";
  vector.parameter = vector.gradient = tensor_of(*backend, normal_values(1, 8), Shape{8}, DType::float32);
  vector.state = {tensor_of(*backend, Values(8, 0.0), Shape{8}, DType::float32)};
  const auto sign_muon = make_sign_muon({});
  sign_muon->prepare(*backend, stream, {1, 0.1, 1.0});
  CHECK_THROWS_AS(sign_muon->local(*backend, stream, {&vector, 1}), ShapeError);
  CHECK_THROWS_WITH(sign_muon->local(*backend, stream, {&vector, 1}), Catch::Contains("sign_muon: blocks.0.bias"));
  CHECK_THROWS_AS(sign_muon->flops(Shape{8}), ShapeError);
}

TEST_CASE("options of voting rules out of range are refused by name", "[errors]") {
  SignumOptions signum;
  signum.momentum = 1.0;
  CHECK_THROWS_WITH(make_signum(signum), Catch::Contains("signum: momentum") && Catch::Contains("[0, 1)"));
  SignAdamOptions adam;
  adam.beta2 = 1.5;
  CHECK_THROWS_WITH(make_sign_adam(adam), Catch::Contains("sign_adam: beta2"));
  LionOptions lion;
  lion.weight_decay = -1.0;
  CHECK_THROWS_WITH(make_lion(lion), Catch::Contains("lion: weight_decay"));
  SignMuonOptions muon;
  muon.newton_schulz.coefficients = "kellr5";
  CHECK_THROWS_WITH(make_sign_muon(muon), Catch::Contains("keller5"));
  muon = {};
  muon.momentum = -0.5;
  CHECK_THROWS_WITH(make_sign_muon(muon), Catch::Contains("sign_muon: momentum"));
  muon = {};
  muon.post_polar = true, muon.rate_shape = RateShape::mup;
  CHECK_THROWS_WITH(make_sign_muon(muon), Catch::Contains("post_polar") && Catch::Contains("mup"));
  CHECK_THROWS_WITH(rate_shape_from_name("unit gain"), Catch::Contains("did you mean \"unit_gain\""));
  CHECK_THROWS_AS(decay_mode_from_name("l2"), ConfigError);
}

TEST_CASE("descriptions of voting rules tell apart whatever changes the result", "[description]") {
  std::vector<std::string> descriptions;
  const auto add = [&](const std::unique_ptr<UpdateRule>& rule) { descriptions.push_back(rule->description().dump()); };
  const auto vary = [&](auto options, auto make, auto... changes) {
    add(make(options));
    (
        [&] {
          auto changed = options;
          changes(changed);
          add(make(changed));
        }(),
        ...);
  };
  const auto decay = [](auto& o) { o.weight_decay = 0.1; };
  const auto coupled = [](auto& o) { o.weight_decay = 0.1, o.decay = DecayMode::coupled; };
  const auto shape = [](auto& o) { o.rate_shape = RateShape::unit_gain; };
  const auto momentum = [](auto& o) { o.momentum = 0.5; };
  const auto sum = [](auto& o) { o.momentum_form = MomentumForm::sum; };
  const auto nesterov = [](auto& o) { o.nesterov = true; };
  const auto beta1 = [](auto& o) { o.beta1 = 0.5; };
  const auto beta2 = [](auto& o) { o.beta2 = 0.5; };
  vary(
      SignMuonOptions(), make_sign_muon, decay, coupled, shape, momentum, sum, nesterov, [](auto& o) { o.post_polar = true; },
      [](auto& o) { o.newton_schulz.normalization = Normalization::spectral; }, [](auto& o) { o.newton_schulz.iterations = 1; },
      [](auto& o) { o.newton_schulz.coefficients = "cubic5"; }, [](auto& o) { o.newton_schulz.epsilon = 1e-7; });
  vary(SignumOptions(), make_signum, decay, coupled, shape, momentum, sum, nesterov);
  vary(SignAdamOptions(), make_sign_adam, decay, coupled, shape, beta1, beta2, [](auto& o) { o.epsilon = 1e-3; });
  vary(LionOptions(), make_lion, decay, coupled, shape, beta1, beta2);
  for (size_t i = 0; i < descriptions.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      INFO(descriptions[i]);
      CHECK(descriptions[i] != descriptions[j]);
    }
}
