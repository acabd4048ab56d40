// How the work of a rule with a vote is divided changes no bit: cuts, batches, placements, the order of its kernels, published
// copies.
#include <algorithm>

#include "dmuon/core/error.h"
#include "optim/all_vote_rules.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

TEST_CASE("element-wise rules with a vote: a tensor cut into ranges gets the bits of the whole", "[device][cuts]") {
  const Shape shape = GENERATE(Shape{7, 5000}, Shape{33000});
  const int64_t row_length = shape.rank() > 1 ? shape[1] : shape[0], elements = shape.elements(), cut = 16384;
  const auto backend = make_test_backend();
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

TEST_CASE("Sign-Muon: neither grouping nor workspace changes a bit, every matrix is counted", "[device][sign_muon]") {
  const auto backend = make_test_backend();
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

TEST_CASE("voting rules publish the parameter they leave, in float32 and in bfloat16", "[device][published]") {
  const auto dtype = GENERATE(DType::float32, DType::bfloat16);
  const auto backend = make_test_backend();
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
