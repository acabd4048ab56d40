// What must hold for every rule with a vote: the scale of the gradient, the size of a step, decay, zeros and non-numbers, momentum.
#include <algorithm>

#include "dmuon/optim/adamw.h"
#include "optim/all_vote_rules.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

TEST_CASE("votes do not depend on the scale of the gradient: powers of two give the same bits", "[device][scale]") {
  for (const bool device : {false, true})
    for (const Named& rule : all_rules()) {
      const auto backend = device ? make_test_backend() : reference_backend();
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

TEST_CASE("messages have the same signs for gradients from 1e-12 to 1e12", "[device][scale]") {
  const auto backend = make_test_backend();
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

TEST_CASE("a step along signs moves every element by exactly the rate times the factor of the shape", "[device][step]") {
  for (const bool device : {false, true}) {
    const auto backend = device ? make_test_backend() : reference_backend();
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

TEST_CASE("without a gradient only the decoupled decay acts, exactly; coupled decay shrinks nothing", "[device][decay]") {
  for (const bool device : {false, true}) {
    const auto backend = device ? make_test_backend() : reference_backend();
    for (const RateShape shape : {RateShape::none, RateShape::unit_gain, RateShape::mup})
      for (const Named& rule : all_rules([&](VoteOptions& options) { options.weight_decay = 0.5, options.rate_shape = shape; })) {
        if (shape != RateShape::none && std::string(rule.name) == "sign_muon, post_polar") continue;  // refused
        Workers workers(*backend, rule.make, 2, {Shape{12, 3}});
        const Values before = workers.parameter(0);
        workers.step(1, 0.25, {{Values(36, 0.0)}, {Values(36, 0.0)}});
        const Values after = workers.parameter(0);
        INFO(backend->name() << " " << rule.name << " " << name_of(shape));
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

TEST_CASE("the shape of the rate does not change a bit of the decay", "[device][decay]") {
  // Their product has 25 bits, halfway between two floats, where a double that is off by its last bit rounds to the other one.
  const double rate = 0.8125, weight_decay = 2579843 * 0x1p-24;
  for (const int64_t fan_in : {3, 12})
    for (const bool device : {false, true}) {
      const auto backend = device ? make_test_backend() : reference_backend();
      const auto decayed = [&](const Named& rule) {
        Workers workers(*backend, rule.make, 1, {Shape{40, fan_in}});
        workers.step(1, rate, {{Values(static_cast<size_t>(40 * fan_in), 0.0)}});
        return workers.parameter(0);
      };
      const auto rules_with = [&](RateShape shape) {
        return all_rules([=](VoteOptions& options) { options.weight_decay = weight_decay, options.rate_shape = shape; });
      };
      const std::vector<Named> plain = rules_with(RateShape::none);
      for (const RateShape shape : {RateShape::unit_gain, RateShape::mup}) {
        const std::vector<Named> shaped = rules_with(shape);
        for (size_t i = 0; i < plain.size(); ++i) {
          if (std::string(plain[i].name) == "sign_muon, post_polar") continue;  // refused
          INFO(backend->name() << " " << plain[i].name << " " << name_of(shape) << " fan-in " << fan_in);
          CHECK((decayed(shaped[i]) == decayed(plain[i])));
        }
      }
    }
}

TEST_CASE("rows that are zero on every worker stay; a zero on one worker is a vote", "[device][zeros]") {
  const auto backend = make_test_backend();
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

TEST_CASE("a row whose gradient is zero from step 2 on: signSGD decays it, SignAdam's first moment still moves it", "[device][zeros]") {
  const double rate = 0.125, decay = 0.5, factor = rate_factor(RateShape::unit_gain, 8);
  for (const bool device : {false, true})
    for (const Named& rule : all_rules([=](VoteOptions& options) { options.weight_decay = decay; })) {
      const auto backend = device ? make_test_backend() : reference_backend();
      const std::string name = rule.name;
      SignAdamOptions adam;
      adam.weight_decay = decay, adam.rate_shape = RateShape::unit_gain;
      const MakeRule make = name == "sign_adam" ? MakeRule([=] { return make_sign_adam(adam); }) : rule.make;
      Workers workers(*backend, make, 3, {Shape{6, 8}});
      const Values start = workers.parameter(0);
      auto gradients = random_gradients(3, 48, 4);
      workers.step(1, rate, gradients);
      const Values before = workers.parameter(0);
      for (auto& worker : gradients) std::fill(worker[0].begin() + 16, worker[0].begin() + 24, 0.0);  // row 2 on all
      workers.step(2, rate, gradients);
      const Values after = workers.parameter(0);
      INFO(backend->name() << " " << name);
      const double keep = 1.0 - rate * decay;
      for (size_t i = 16; i < 24; ++i) {
        const double moved = before[i] * keep - after[i];
        if (name == "signSGD") {
          CHECK(after[i] == static_cast<double>(static_cast<float>(before[i] * keep)));
        } else if (name == "sign_adam") {
          const double sign = start[i] * keep > before[i] ? 1.0 : -1.0;
          const double first = adam.beta1 * (1 - adam.beta1) * sign / (1 - adam.beta1 * adam.beta1);
          const double second = adam.beta2 * (1 - adam.beta2) / (1 - adam.beta2 * adam.beta2);
          CHECK(moved == Approx(rate * factor * first / (std::sqrt(second) + adam.epsilon)).epsilon(1e-5));
        } else if (name != "sign_muon, post_polar") {
          CHECK(std::fabs(moved) == Approx(rate).epsilon(1e-5));  // their momentum, and so their message, is not zero
        }
      }
    }
}

TEST_CASE("messages that are not finite stay so, for the vote to report", "[device][zeros]") {
  for (const bool device : {false, true})
    for (const Named& rule : all_rules()) {
      const auto backend = device ? make_test_backend() : reference_backend();
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

TEST_CASE("Sign-Muon follows the fixture: signs of each worker, the vote, the vote orthogonalised", "[device][fixture]") {
  const Json data = fixture("muon_fixtures.json");
  const Json& expected = data.at("signmuon");
  std::vector<std::vector<Values>> gradients;
  for (const Json& gradient : data.at("G").as_array()) gradients.push_back({numbers(gradient)});
  REQUIRE(gradients.size() == 3);
  for (const bool device : {false, true}) {
    const auto backend = device ? make_test_backend() : reference_backend();
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
