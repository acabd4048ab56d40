// What must hold for every rule with a vote: the scale of the gradient, the size of a step, cuts, batches, zeros and
// non-numbers, published copies, errors, descriptions.
#include <algorithm>

#include "dmuon/core/error.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/lion.h"
#include "dmuon/optim/sign_adam.h"
#include "dmuon/optim/sign_muon.h"
#include "dmuon/optim/signum.h"
#include "optim/vote_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

struct Named {
  const char* name;
  MakeRule make;
};

// Every rule, with `change` applied to its common options.
std::vector<Named> all_rules(const std::function<void(VoteOptions&)>& change = {}) {
  const auto with = [&](auto options) {
    if (change) change(options);
    return options;
  };
  SignMuonOptions polar;
  polar.post_polar = true;
  SignMuonOptions spectral;
  spectral.newton_schulz.normalization = Normalization::spectral;
  SignumOptions sign_sgd;
  sign_sgd.momentum = 0.0;
  return {{"sign_muon", [options = with(SignMuonOptions())] { return make_sign_muon(options); }},
          {"sign_muon, spectral", [options = with(spectral)] { return make_sign_muon(options); }},
          {"sign_muon, post_polar", [options = with(polar)] { return make_sign_muon(options); }},
          {"signum", [options = with(SignumOptions())] { return make_signum(options); }},
          {"signSGD", [options = with(sign_sgd)] { return make_signum(options); }},
          {"sign_adam", [options = with(SignAdamOptions())] { return make_sign_adam(options); }},
          {"lion", [options = with(LionOptions())] { return make_lion(options); }}};
}

Values floats(Values values) {
  for (double& each : values) each = static_cast<float>(each);
  return values;
}

Values scaled(Values values, double factor) {
  for (double& each : values) each = static_cast<float>(each * factor);
  return values;
}

// `workers` gradients of one tensor.
std::vector<std::vector<Values>> random_gradients(int workers, int64_t elements, uint64_t seed, double factor = 1.0) {
  std::vector<std::vector<Values>> all;
  for (int worker = 0; worker < workers; ++worker)
    all.push_back({scaled(floats(normal_values(seed * 100 + static_cast<uint64_t>(worker), elements)), factor)});
  return all;
}

std::vector<bool> signs_of(const Values& values) {
  std::vector<bool> signs;
  for (const double each : values) signs.push_back(each > 0);
  return signs;
}

}  // namespace

TEST_CASE("votes do not depend on the scale of the gradient: powers of two give the same bits", "[scale]") {
  for (const bool cpu : {false, true})
    for (const Named& rule : all_rules()) {
      const auto backend = cpu ? make_cpu_backend() : reference_backend();
      const auto run = [&](int exponent, double scale) {
        Workers workers(*backend, rule.make, 3, {Shape{12, 20}});
        for (int64_t step = 1; step <= 3; ++step)
          workers.step(step, 0.01, random_gradients(3, 240, static_cast<uint64_t>(step), std::ldexp(1.0, exponent)), scale);
        return workers.parameter(0);
      };
      const Values expected = run(0, 1.0);
      for (const int exponent : {-70, -40, -7, 3, 33, 60}) {
        INFO(backend->name() << " " << rule.name << " 2^" << exponent);
        CHECK((run(exponent, 1.0) == expected));
      }
      CHECK((run(0, 0.25) == expected));  // replicas, a loss scale
    }
}

TEST_CASE("messages have the same signs for gradients from 1e-12 to 1e12", "[scale]") {
  const auto backend = make_cpu_backend();
  for (const Named& rule : all_rules()) {
    const auto run = [&](double factor, double* closest) {
      Workers workers(*backend, rule.make, 1, {Shape{9, 14}});
      workers.step(1, 0.01, random_gradients(1, 126, 5, factor));
      const Values message = workers.message(0);
      if (closest)
        for (const double each : message) *closest = std::fmin(*closest, std::fabs(each) / norm_of(message));
      return signs_of(message);
    };
    double closest = INFINITY;
    const std::vector<bool> expected = run(1.0, &closest);
    REQUIRE(closest > 1e-6);  // no sign hangs on rounding
    for (const double factor : {1e-12, 3e-7, 1e-3, 1e4, 7e9, 1e12}) {
      INFO(rule.name << " " << factor);
      CHECK(run(factor, nullptr) == expected);
    }
  }
}

TEST_CASE("a step along signs moves every element by exactly the rate times the factor of the shape", "[step]") {
  for (const bool cpu : {false, true}) {
    const auto backend = cpu ? make_cpu_backend() : reference_backend();
    for (const RateShape shape : {RateShape::none, RateShape::unit_gain, RateShape::mup})
      for (const Named& rule : all_rules([&](VoteOptions& options) { options.rate_shape = shape; })) {
        const std::string name = rule.name;
        if (name == "sign_muon, post_polar" || name == "sign_adam") continue;  // their steps are no signs
        Workers workers(*backend, rule.make, 1, {Shape{6, 16}});
        backend->zero(backend->compute_stream(), workers.item(0, 0).parameter);
        workers.step(1, 0.125, random_gradients(1, 96, 3));
        INFO(backend->name() << " " << name << " " << name_of(shape));
        for (const double each : workers.parameter(0)) CHECK(std::fabs(each) == 0.125 * rate_factor(shape, 16));  // 1, 1/4, 1/16
      }
  }
  CHECK(rate_factor(RateShape::none, 7) == 1.0);
  CHECK(rate_factor(RateShape::unit_gain, 64) == 0.125);
  CHECK(rate_factor(RateShape::mup, 64) == 0.015625);
}

TEST_CASE("without a gradient only the decoupled decay acts, exactly; coupled decay shrinks nothing", "[decay]") {
  for (const bool cpu : {false, true}) {
    const auto backend = cpu ? make_cpu_backend() : reference_backend();
    for (const Named& rule : all_rules([](VoteOptions& options) { options.weight_decay = 0.5; })) {
      Workers workers(*backend, rule.make, 2, {Shape{12, 3}});
      const Values before = workers.parameter(0);
      workers.step(1, 0.25, {{Values(36, 0.0)}, {Values(36, 0.0)}});
      const Values after = workers.parameter(0);
      INFO(backend->name() << " " << rule.name);
      for (size_t i = 0; i < before.size(); ++i) CHECK(after[i] == static_cast<double>(static_cast<float>(before[i] * 0.875)));
    }
    SignumOptions coupled;
    coupled.weight_decay = 0.5, coupled.decay = DecayMode::coupled;
    Workers workers(*backend, [&] { return make_signum(coupled); }, 1, {Shape{5}});
    from_doubles(*backend, Values{2, -2, 0.5, -0.25, 8}, workers.item(0, 0).parameter);
    workers.step(1, 0.125, {{Values{0, 0, -1, 1, 1}}});
    // g + p / 2 = 1, -1, -0.75, 0.875, 5
    CHECK((workers.parameter(0) == Values{1.875, -1.875, 0.625, -0.375, 7.875}));
    // The gradient's scale multiplies the gradient, not the decay: 0.25 g + p / 2 = 0.75 and -0.75 in place of -0.75 and 0.875.
    Workers weighted(*backend, [&] { return make_signum(coupled); }, 1, {Shape{2}});
    from_doubles(*backend, Values{2, -2}, weighted.item(0, 0).parameter);
    weighted.step(1, 0.125, {{Values{-2, 2}}}, 0.25);
    CHECK((weighted.parameter(0) == Values{1.875, -1.875}));
  }
}

TEST_CASE("rows that are zero on every worker stay; a zero on one worker is a vote", "[zeros]") {
  const auto backend = make_cpu_backend();
  for (const Named& rule : all_rules()) {
    const std::string name = rule.name;
    Workers workers(*backend, rule.make, 3, {Shape{6, 8}});
    auto gradients = random_gradients(3, 48, 4);
    for (auto& worker : gradients) std::fill(worker[0].begin() + 16, worker[0].begin() + 24, 0.0);  // row 2 on all
    std::fill(gradients[1][0].begin(), gradients[1][0].begin() + 8, 0.0);                           // row 0 on one
    const Values before = workers.parameter(0);
    workers.step(1, 0.125, gradients);
    const Values after = workers.parameter(0);
    INFO(name);
    for (size_t i = 0; i < after.size(); ++i) {
      const bool dead = i >= 16 && i < 24;
      CHECK((after[i] == before[i]) == dead);
    }
  }
}

TEST_CASE("messages that are not finite stay so, for the vote to report", "[zeros]") {
  for (const bool cpu : {false, true})
    for (const Named& rule : all_rules()) {
      const auto backend = cpu ? make_cpu_backend() : reference_backend();
      const auto made = rule.make();
      UpdateItem item;
      item.name = "w";
      item.parameter = tensor_of(*backend, normal_values(1, 20), Shape{4, 5}, DType::float32);
      for (size_t s = 0; s < made->state().size(); ++s)
        item.state.push_back(tensor_of(*backend, Values(20, 0.0), Shape{4, 5}, DType::float32));
      for (const double bad : {NAN, INFINITY, -INFINITY}) {
        for (const Tensor& state : item.state) backend->zero(backend->compute_stream(), state);
        Values values = normal_values(2, 20);
        values[7] = bad;
        item.gradient = tensor_of(*backend, values, Shape{4, 5}, DType::float32);
        made->prepare(*backend, backend->compute_stream(), {1, 0.1, 1.0});
        made->local(*backend, backend->compute_stream(), {&item, 1});
        INFO(backend->name() << " " << rule.name << " " << bad);
        CHECK_FALSE(std::isfinite(to_doubles(*backend, item.gradient)[7]));
      }
    }
}

TEST_CASE("element-wise rules with a vote: a tensor cut into ranges gets the bits of the whole", "[cuts]") {
  const Shape shape = GENERATE(Shape{7, 5000}, Shape{33000});
  const int64_t row_length = shape.rank() > 1 ? shape[1] : shape[0], elements = shape.elements(), cut = 16384;
  const auto backend = make_cpu_backend();
  for (const Named& rule :
       all_rules([](VoteOptions& options) { options.rate_shape = RateShape::unit_gain, options.weight_decay = 0.25; })) {
    if (std::string(rule.name).starts_with("sign_muon")) continue;
    const auto made = rule.make();
    CHECK(made->cutting() == Cutting::anywhere);
    const auto item_of = [&] {
      UpdateItem item;
      item.name = "w";
      item.parameter = tensor_of(*backend, normal_values(1, elements), Shape{elements}, DType::float32);
      for (size_t s = 0; s < made->state().size(); ++s)
        item.state.push_back(tensor_of(*backend, Values(static_cast<size_t>(elements), 0.0), Shape{elements}, DType::float32));
      return item;
    };
    UpdateItem whole = item_of(), base = item_of();
    for (const int64_t step : {1, 2}) {
      Values gradient = normal_values(static_cast<uint64_t>(step) + 9, elements);
      std::fill(gradient.begin() + 5000, gradient.begin() + 10000, 0.0);
      whole.gradient = tensor_of(*backend, gradient, Shape{elements}, DType::float32);
      base.gradient = tensor_of(*backend, gradient, Shape{elements}, DType::float32);
      made->prepare(*backend, backend->compute_stream(), {step, 0.01, 1.0});
      const auto half_by_half = [&](UpdateItem& item, const SignSegments& segments) {
        made->local(*backend, backend->compute_stream(), {&item, 1});
        item.vote = vote_of(*backend, {item.gradient}, segments, sign_key(1, step, "w"), step);
        made->global(*backend, backend->compute_stream(), {&item, 1});
      };
      half_by_half(whole, {0, elements, row_length, cut});
      for (int64_t first = 0; first < elements; first += cut) {
        const int64_t count = std::min(cut, elements - first);
        UpdateItem piece{"w", base.parameter.flat(first, count), base.gradient.flat(first, count), {}};
        for (const Tensor& state : base.state) piece.state.push_back(state.flat(first, count));
        half_by_half(piece, {first, count, row_length, cut});
      }
    }
    INFO(rule.name);
    CHECK((to_doubles(*backend, whole.parameter) == to_doubles(*backend, base.parameter)));
    for (size_t s = 0; s < whole.state.size(); ++s) CHECK((to_doubles(*backend, whole.state[s]) == to_doubles(*backend, base.state[s])));
  }
}

TEST_CASE("Sign-Muon: neither grouping nor workspace changes a bit, every matrix is counted", "[sign_muon]") {
  const auto backend = make_cpu_backend();
  const std::vector<Shape> shapes = {{4, 9}, {9, 4}, {4, 9}, {6, 6}, {4, 9}, {2, 2, 3, 3}, {2, 18}};
  for (const bool post_polar : {false, true})
    for (const Normalization normalization : {Normalization::frobenius, Normalization::spectral}) {
      SignMuonOptions options;
      options.post_polar = post_polar;
      options.newton_schulz.normalization = normalization;
      std::vector<std::vector<Values>> gradients(1);
      for (size_t i = 0; i < shapes.size(); ++i) gradients[0].push_back(normal_values(50 + i, shapes[i].elements()));
      Workers together(
          *backend, [&] { return make_sign_muon(options); }, 1, shapes);
      for (const int64_t step : {1, 2}) together.step(step, 0.1, gradients);
      CHECK(together.rule(0).newton_schulz_calls() == (post_polar ? 2 : 1));
      CHECK(together.rule(0).counters().newton_schulz_calls == (post_polar ? 28 : 14));
      CHECK(together.rule(0).counters().newton_schulz_guard_events == 0);
      options.workspace_bytes = 1;  // one matrix at a time
      Workers narrow(
          *backend, [&] { return make_sign_muon(options); }, 1, shapes);
      for (const int64_t step : {1, 2}) narrow.step(step, 0.1, gradients);
      for (size_t i = 0; i < shapes.size(); ++i) {
        CHECK((together.parameter(i) == narrow.parameter(i)));
        CHECK((together.state(0, i) == narrow.state(0, i)));
      }
    }
}

TEST_CASE("Sign-Muon: tuned placements are adopted and change no bit", "[sign_muon]") {
  const auto backend = make_cpu_backend({HostMode::normal, 2, 1, "auto"});
  const std::vector<Shape> shapes = {{16, 24}, {16, 24}, {16, 24}};
  const std::vector<ShapeCount> counts = {{Shape{16, 24}, 3}};
  const auto tuner = make_sign_muon({});
  const Json choices = tuner->tune(*backend, counts, nullptr);
  CHECK(choices.at("placements").find("16x24"));
  std::vector<std::vector<Values>> gradients = {{normal_values(1, 384), normal_values(2, 384), normal_values(3, 384)}};
  Workers plain(
      *backend, [] { return make_sign_muon({}); }, 1, shapes);
  Workers tuned(
      *backend, [] { return make_sign_muon({}); }, 1, shapes);
  tuned.rule(0).adopt(choices);
  plain.step(1, 0.1, gradients);
  tuned.step(1, 0.1, gradients);
  for (size_t i = 0; i < shapes.size(); ++i) CHECK((plain.parameter(i) == tuned.parameter(i)));
  Json forms = parse_json(R"({"placements": {}, "measured_forms": {"16x24": "gram"}})", "choices");
  CHECK_THROWS_WITH(tuner->adopt(forms), Catch::Contains("sign_muon") && Catch::Contains("tune_numerics"));
}

TEST_CASE("averaging and heavy-ball momentum give the same signs", "[momentum]") {
  const auto backend = reference_backend();
  const auto run = [&](auto options, const auto& make, MomentumForm form) {
    options.momentum_form = form;
    Workers workers(*backend, [&] { return make(options); }, 3, {Shape{7, 9}});
    for (int64_t step = 1; step <= 5; ++step) workers.step(step, 0.01, random_gradients(3, 63, static_cast<uint64_t>(step)));
    return workers.parameter(0);
  };
  for (const bool nesterov : {false, true}) {
    SignumOptions signum;
    SignMuonOptions sign_muon;
    signum.nesterov = sign_muon.nesterov = nesterov;
    CHECK((run(signum, make_signum, MomentumForm::lerp) == run(signum, make_signum, MomentumForm::sum)));
    CHECK((run(sign_muon, make_sign_muon, MomentumForm::lerp) == run(sign_muon, make_sign_muon, MomentumForm::sum)));
  }
}

TEST_CASE("the sign of Adam's direction is Signum's message at the same beta1", "[momentum]") {
  const auto backend = reference_backend();
  const Shape shape{11, 6};
  const auto adamw = make_adamw({0.9, 0.95, 1e-8, 0.0});
  UpdateItem item{"w", tensor_of(*backend, Values(66, 0.0), shape, DType::float32), {}, {}};
  for (int s = 0; s < 2; ++s) item.state.push_back(tensor_of(*backend, Values(66, 0.0), shape, DType::float32));
  Workers signum(*backend, [] { return make_signum({}); }, 1, {shape});
  for (int64_t step = 1; step <= 4; ++step) {
    const auto gradients = random_gradients(1, 66, static_cast<uint64_t>(step));
    backend->zero(backend->compute_stream(), item.parameter);  // so that it holds minus the direction
    item.gradient = tensor_of(*backend, gradients[0][0], shape, DType::float32);
    adamw->prepare(*backend, backend->compute_stream(), {step, 1.0, 1.0});
    adamw->global(*backend, backend->compute_stream(), {&item, 1});
    signum.step(step, 0.01, gradients);
    Values direction = to_doubles(*backend, item.parameter);
    for (double& each : direction) each = -each;
    CHECK(signs_of(direction) == signs_of(signum.message(0)));
  }
}

TEST_CASE("Sign-Muon follows the fixture: signs of each worker, the vote, the vote orthogonalised", "[fixture]") {
  const Json data = fixture("muon_fixtures.json");
  const Json& expected = data.at("signmuon");
  std::vector<std::vector<Values>> gradients;
  for (const Json& gradient : data.at("G").as_array()) gradients.push_back({numbers(gradient)});
  REQUIRE(gradients.size() == 3);
  for (const bool cpu : {false, true}) {
    const auto backend = cpu ? make_cpu_backend() : reference_backend();
    Workers workers(*backend, [] { return make_sign_muon({}); }, 3, {Shape{2, 3}});
    backend->zero(backend->compute_stream(), workers.item(0, 0).parameter);
    workers.step(1, 0.5, gradients);
    for (size_t worker = 0; worker < 3; ++worker)
      CHECK(signs_of(workers.message(0, worker)) == signs_of(numbers(expected.at("per_worker_sign").as_array()[worker])));
    CHECK((workers.parameter(0) == scaled(numbers(expected.at("vote3")), -0.5)));

    SignMuonOptions polar;
    polar.post_polar = true;
    polar.newton_schulz.coefficients = "track3_12";  // converges to the polar factor
    polar.newton_schulz.iterations = 40;
    Workers along(*backend, [&] { return make_sign_muon(polar); }, 3, {Shape{2, 3}});
    backend->zero(backend->compute_stream(), along.item(0, 0).parameter);
    along.step(1, 0.5, gradients);
    CHECK(largest_difference(along.parameter(0), scaled(numbers(expected.at("polar_vote3")), -0.5)) < 1e-6);
  }
}

TEST_CASE("a step of a voting rule touches memory only through kernels and survives any legal order", "[doubles]") {
  const auto mode = GENERATE(HostMode::guarded, HostMode::deferred);
  const auto plain = reference_backend();
  const auto doubled = reference_backend({mode, 1, 11, "auto"});
  for (const Named& rule : all_rules([](VoteOptions& options) { options.weight_decay = 0.1, options.decay = DecayMode::coupled; })) {
    const auto run = [&](Backend& backend) {
      Workers workers(backend, rule.make, 2, {Shape{3, 7}, Shape{3, 7}, Shape{5, 2}});
      std::vector<std::vector<Values>> gradients(2);
      for (size_t worker = 0; worker < 2; ++worker)
        for (const int64_t elements : {21, 21, 10})
          gradients[worker].push_back(normal_values(gradients[worker].size() + worker * 7, elements));
      for (const int64_t step : {1, 2}) workers.step(step, 0.1, gradients);
      return std::vector<Values>{workers.parameter(0), workers.parameter(1, 1), workers.parameter(2)};
    };
    INFO(rule.name);
    CHECK((run(*plain) == run(*doubled)));
  }
}

TEST_CASE("voting rules publish the parameter they leave, in float32 and in bfloat16", "[published]") {
  const auto dtype = GENERATE(DType::float32, DType::bfloat16);
  const auto backend = make_cpu_backend();
  for (const Named& rule : all_rules()) {
    Workers workers(*backend, rule.make, 1, {Shape{33, 70}});
    workers.item(0, 0).published = tensor_of(*backend, Values(33 * 70, NAN), Shape{33, 70}, dtype);
    workers.step(1, 0.02, random_gradients(1, 33 * 70, 8));
    const Tensor converted = backend->allocate(Shape{33, 70}, dtype, MemoryCategory::workspace, "test");
    backend->copy(backend->compute_stream(), workers.item(0, 0).parameter, converted);
    INFO(rule.name << " " << name_of(dtype));
    CHECK((to_doubles(*backend, workers.item(0, 0).published) == to_doubles(*backend, converted)));
  }
}

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
