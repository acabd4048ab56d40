// What must hold for every rule: grouping, cuts and doubles change no bit; errors name the parameter; counters count.
#include <functional>

#include "dmuon/core/error.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/muon.h"
#include "dmuon/optim/sgd.h"
#include "newton_schulz/spectra.h"
#include "optim/optimizer_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

using Values = std::vector<double>;

UpdateItem make_item(Backend& backend, const UpdateRule& rule, const std::string& name, uint64_t seed, const Shape& shape,
                     DType dtype = DType::float32) {
  UpdateItem item;
  item.name = name;
  item.parameter = tensor_of(backend, normal_values(seed, shape.elements()), shape, dtype);
  item.gradient = tensor_of(backend, normal_values(seed + 1000, shape.elements()), shape, dtype);
  for (size_t i = 0; i < rule.state().size(); ++i)
    item.state.push_back(tensor_of(backend, Values(static_cast<size_t>(shape.elements()), 0.0), shape, dtype));
  return item;
}

void step(Backend& backend, UpdateRule& rule, std::span<UpdateItem> items, int64_t number = 1, double rate = 0.1, double scale = 1.0) {
  rule.prepare(backend, backend.compute_stream(), {number, rate, scale});
  rule.local(backend, backend.compute_stream(), items);
  rule.global(backend, backend.compute_stream(), items);
}

bool same(Backend& backend, const Tensor& a, const Tensor& b) { return to_doubles(backend, a) == to_doubles(backend, b); }

}  // namespace

TEST_CASE("Muon: neither grouping nor workspace changes a bit, every matrix is counted once", "[device]") {
  const auto backend = GENERATE(false, true) ? make_test_backend() : reference_backend();
  const std::vector<Shape> shapes = {{4, 9}, {9, 4}, {4, 9}, {6, 6}, {4, 9}, {2, 2, 3, 3}, {2, 18}};
  const auto make_all = [&](const UpdateRule& rule) {
    std::vector<UpdateItem> items;
    for (size_t i = 0; i < shapes.size(); ++i) items.push_back(make_item(*backend, rule, "w" + std::to_string(i), i, shapes[i]));
    return items;
  };
  MuonOptions options = muon_options("dmuon");
  options.weight_decay = 0.1;
  const auto together = make_muon(options);
  auto expected = make_all(*together);
  for (int64_t number : {1, 2, 3}) step(*backend, *together, expected, number);
  CHECK(together->counters().newton_schulz_calls == 3 * static_cast<int64_t>(shapes.size()));
  CHECK(together->counters().newton_schulz_guard_events == 0);

  options.workspace_bytes = 1;  // one matrix at a time
  const auto narrow = make_muon(options);
  auto items = make_all(*narrow);
  for (int64_t number : {1, 2, 3}) step(*backend, *narrow, items, number);
  const auto alone = make_muon(options);
  auto singles = make_all(*alone);
  for (int64_t number : {1, 2, 3})
    for (size_t i = singles.size(); i-- > 0;) step(*backend, *alone, {&singles[i], 1}, number);
  for (size_t i = 0; i < shapes.size(); ++i) {
    CHECK(same(*backend, items[i].parameter, expected[i].parameter));
    CHECK(same(*backend, singles[i].parameter, expected[i].parameter));
    CHECK(same(*backend, singles[i].state[0], expected[i].state[0]));
  }
}

TEST_CASE("element-wise rules: a tensor cut into ranges gets the bits of the whole", "[device]") {
  const std::vector<std::function<std::unique_ptr<UpdateRule>()>> makers = {[] { return make_adamw({}); },
                                                                            [] {
                                                                              return make_sgd({0.9, 0.1, true, 0.1});
                                                                            }};
  constexpr int64_t cut = 16384, elements = 2 * cut + 77;
  const auto backend = GENERATE(false, true) ? make_test_backend() : reference_backend();
  for (const auto& make : makers) {
    const auto rule = make();
    CHECK(rule->cutting() == Cutting::anywhere);
    UpdateItem whole = make_item(*backend, *rule, "w", 1, Shape{elements});
    UpdateItem base = make_item(*backend, *rule, "w", 1, Shape{elements});
    for (int64_t number : {1, 2}) {
      step(*backend, *rule, {&whole, 1}, number);
      for (int64_t first : {2 * cut, int64_t{0}, cut}) {
        const int64_t count = std::min(cut, elements - first);
        UpdateItem piece{"w", base.parameter.flat(first, count), base.gradient.flat(first, count), {}};
        for (const Tensor& state : base.state) piece.state.push_back(state.flat(first, count));
        rule->global(*backend, backend->compute_stream(), {&piece, 1});
      }
    }
    CHECK(same(*backend, whole.parameter, base.parameter));
    for (size_t i = 0; i < whole.state.size(); ++i) CHECK(same(*backend, whole.state[i], base.state[i]));
  }
}

TEST_CASE("a step touches memory only through kernels and survives any legal order") {
  const auto mode = GENERATE(HostMode::guarded, HostMode::deferred);
  const auto plain = reference_backend();
  const auto doubled = reference_backend({mode, 1, 11, "auto"});
  const auto run = [](Backend& backend) {
    std::vector<Values> results;
    for (const auto& rule : {make_adamw({}), make_sgd({}), make_muon(muon_options("dion"))}) {
      std::vector<UpdateItem> items = {make_item(backend, *rule, "a", 1, Shape{3, 7}), make_item(backend, *rule, "b", 2, Shape{3, 7}),
                                       make_item(backend, *rule, "c", 3, Shape{5, 2})};
      for (int64_t number : {1, 2}) step(backend, *rule, items, number);
      for (const UpdateItem& item : items) results.push_back(to_doubles(backend, item.parameter));
    }
    return results;
  };
  CHECK((run(*plain) == run(*doubled)));
}

TEST_CASE("Muon: a zero gradient with zero momentum leaves only decay, by the base learning rate") {
  const auto backend = reference_backend();
  for (const std::string& preset : muon_options_names()) {
    MuonOptions options = muon_options(preset);
    options.weight_decay = 0.5;
    const auto rule = make_muon(options);
    UpdateItem item = make_item(*backend, *rule, "w", 1, Shape{12, 3}, DType::float64);
    backend->zero(backend->compute_stream(), item.gradient);
    const Values before = to_doubles(*backend, item.parameter);
    step(*backend, *rule, {&item, 1}, 1, 0.25);
    const Values after = to_doubles(*backend, item.parameter);
    for (size_t i = 0; i < before.size(); ++i) CHECK(after[i] == before[i] * 0.875);
    CHECK(norm_of(to_doubles(*backend, item.state[0])) == 0.0);
  }
}

TEST_CASE("Muon: a learning rate of zero moves nothing, the gradient is left as it was", "[device]") {
  const auto backend = GENERATE(false, true) ? make_test_backend() : reference_backend();
  const auto rule = make_muon(muon_options("torch"));
  UpdateItem item = make_item(*backend, *rule, "w", 1, Shape{4, 6});
  const Values parameter = to_doubles(*backend, item.parameter), gradient = to_doubles(*backend, item.gradient);
  step(*backend, *rule, {&item, 1}, 1, 0.0);
  CHECK((to_doubles(*backend, item.parameter) == parameter));
  CHECK((to_doubles(*backend, item.gradient) == gradient));
  CHECK(norm_of(to_doubles(*backend, item.state[0])) > 0.0);
}

TEST_CASE("Muon: without nesterov the update does not write through to the momentum") {
  const auto backend = reference_backend();
  MuonOptions options = muon_options("dion");
  const auto rule = make_muon(options);
  UpdateItem item = make_item(*backend, *rule, "w", 1, Shape{4, 6}, DType::float64);
  step(*backend, *rule, {&item, 1});
  CHECK((to_doubles(*backend, item.state[0]) == to_doubles(*backend, item.gradient)));  // sum form, first step
}

TEST_CASE("Muon: a clip coefficient of 1e-8 does not change the update when the norm is clamped") {
  const auto backend = reference_backend();
  const auto rule = make_muon(muon_options("custom"));
  UpdateItem plain = make_item(*backend, *rule, "w", 1, Shape{8, 16}), clipped = make_item(*backend, *rule, "w", 1, Shape{8, 16});
  step(*backend, *rule, {&plain, 1}, 1, 0.1, 1.0);
  step(*backend, *rule, {&clipped, 1}, 1, 0.1, 1e-8);
  CHECK(relative_error(to_doubles(*backend, clipped.parameter), to_doubles(*backend, plain.parameter)) < 1e-6);
}

TEST_CASE("Muon: match_rms gives an update with the RMS it is named for") {
  const auto backend = reference_backend();
  MuonOptions options = muon_options("moonlight");
  options.weight_decay = 0.0;
  const auto rule = make_muon(options);
  UpdateItem item = make_item(*backend, *rule, "w", 1, Shape{48, 48});
  backend->zero(backend->compute_stream(), item.parameter);
  step(*backend, *rule, {&item, 1}, 1, 1.0);
  const double rms = norm_of(to_doubles(*backend, item.parameter)) / 48;
  CHECK(rms > 0.16);
  CHECK(rms < 0.21);
}

TEST_CASE("Muon: scales at a fixed direction") {
  CHECK(muon_scale(ScaleMode::original, 3072, 768) == 2.0);
  CHECK(muon_scale(ScaleMode::original, 768, 3072) == 1.0);
  CHECK(muon_scale(ScaleMode::match_rms, 768, 3072) == Approx(11.085).epsilon(1e-4));
  CHECK(muon_scale(ScaleMode::spectral, 3072, 768) == Approx(55.43).epsilon(1e-4));
  CHECK(muon_scale(ScaleMode::spectral_ratio, 768, 3072) == 0.5);
  CHECK(muon_scale(ScaleMode::none, 768, 3072) == 1.0);
}

TEST_CASE("Muon: momentum warms up linearly from the first step") {
  MuonOptions options;
  options.momentum_warmup_steps = 10;
  CHECK(muon_momentum(options, 1) == Approx(0.85));
  CHECK(muon_momentum(options, 6) == Approx(0.90));
  CHECK(muon_momentum(options, 11) == Approx(0.95));
  CHECK(muon_momentum(options, 1000) == Approx(0.95));
  options.momentum_warmup_steps = 0;
  CHECK(muon_momentum(options, 1) == 0.95);
}

TEST_CASE("Muon: lerp and sum make one update while the momentum is constant, another once it moves") {
  const auto backend = reference_backend();
  for (int64_t warmup : {0, 3}) {
    std::vector<Values> results;
    for (MomentumForm form : {MomentumForm::lerp, MomentumForm::sum}) {
      MuonOptions options = muon_options("custom");
      options.momentum_form = form;
      options.momentum_warmup_steps = warmup;
      options.newton_schulz.epsilon = 0.0;
      const auto rule = make_muon(options);
      UpdateItem item = make_item(*backend, *rule, "w", 1, Shape{4, 7}, DType::float64);
      for (int64_t number : {1, 2, 3}) {
        item.gradient = tensor_of(*backend, normal_values(77 + static_cast<uint64_t>(number), 28), Shape{4, 7}, DType::float64);
        step(*backend, *rule, {&item, 1}, number, 0.02);
      }
      results.push_back(to_doubles(*backend, item.parameter));
    }
    if (warmup == 0) CHECK(largest_difference(results[0], results[1]) < 1e-13);
    if (warmup > 0) CHECK(largest_difference(results[0], results[1]) > 1e-4);
  }
}

TEST_CASE("Muon: a gradient that is not finite is counted, not repaired", "[device]") {
  const auto backend = GENERATE(false, true) ? make_test_backend() : reference_backend();
  const auto rule = make_muon(muon_options("keller"));
  std::vector<UpdateItem> items = {make_item(*backend, *rule, "a", 1, Shape{4, 8}), make_item(*backend, *rule, "b", 2, Shape{4, 8})};
  Values bad = to_doubles(*backend, items[1].gradient);
  bad[5] = NAN;
  from_doubles(*backend, bad, items[1].gradient);
  step(*backend, *rule, items);
  CHECK(rule->counters().newton_schulz_guard_events == 1);
  CHECK(std::isfinite(norm_of(to_doubles(*backend, items[0].parameter))));
  CHECK_FALSE(std::isfinite(norm_of(to_doubles(*backend, items[1].parameter))));
}

TEST_CASE("rules refuse what does not fit, naming the parameter") {
  const auto backend = reference_backend();
  const auto muon = make_muon({});
  const auto adamw = make_adamw({});
  UpdateItem vector = make_item(*backend, *muon, "blocks.0.bias", 1, Shape{8});
  CHECK_THROWS_AS(step(*backend, *muon, {&vector, 1}), ShapeError);
  CHECK_THROWS_WITH(step(*backend, *muon, {&vector, 1}), Catch::Contains("blocks.0.bias") && Catch::Contains("[8]"));
  UpdateItem three = make_item(*backend, *muon, "experts", 1, Shape{2, 3, 4});
  CHECK_THROWS_AS(step(*backend, *muon, {&three, 1}), ShapeError);
  CHECK_THROWS_AS(muon->flops(Shape{8}), ShapeError);

  UpdateItem stateless = make_item(*backend, *muon, "w", 1, Shape{2, 2});  // one state, AdamW needs two
  CHECK_THROWS_WITH(step(*backend, *adamw, {&stateless, 1}), Catch::Contains("w brings 1 state"));
  UpdateItem mismatched = make_item(*backend, *adamw, "blocks.1.weight", 1, Shape{2, 2});
  mismatched.gradient = tensor_of(*backend, {1, 2}, Shape{2}, DType::float32);
  CHECK_THROWS_WITH(step(*backend, *adamw, {&mismatched, 1}), Catch::Contains("blocks.1.weight") && Catch::Contains("gradient"));
  UpdateItem unprepared = make_item(*backend, *adamw, "w", 1, Shape{2, 2});
  CHECK_THROWS_AS(make_adamw({})->global(*backend, backend->compute_stream(), {&unprepared, 1}), ShapeError);
}

TEST_CASE("options out of range are refused by name") {
  CHECK_THROWS_WITH(make_adamw({1.0, 0.95, 1e-8, 0.1}), Catch::Contains("beta1") && Catch::Contains("[0, 1)"));
  CHECK_THROWS_WITH(make_adamw({0.9, -0.1, 1e-8, 0.1}), Catch::Contains("beta2"));
  CHECK_THROWS_WITH(make_adamw({0.9, 0.95, NAN, 0.1}), Catch::Contains("epsilon"));
  CHECK_THROWS_WITH(make_sgd({0.9, 2.0, false, 0.0}), Catch::Contains("dampening"));
  MuonOptions options;
  options.momentum = 1.0;
  CHECK_THROWS_AS(make_muon(options), ConfigError);
  options = {};
  options.newton_schulz.coefficients = "kellr5";
  CHECK_THROWS_WITH(make_muon(options), Catch::Contains("keller5"));
  CHECK_THROWS_WITH(muon_options("kellr"), Catch::Contains("did you mean \"keller\""));
  CHECK_THROWS_AS(scale_mode_from_name("rms"), ConfigError);
  CHECK_THROWS_AS(momentum_form_from_name("ema"), ConfigError);
}

TEST_CASE("guard events count the matrices that were computed again, calls count every matrix once") {
  // Ten steep rows in one segment ruin matrices of low rank; the guard takes the direct form for those.
  MuonOptions options = muon_options("custom"), direct = options;
  options.newton_schulz.coefficients = direct.newton_schulz.coefficients = "deepseek10";
  options.newton_schulz.iterations = direct.newton_schulz.iterations = 10;
  options.newton_schulz.form = IterationForm::gram;
  options.newton_schulz.disable_restarts = true;
  direct.newton_schulz.form = IterationForm::direct;
  const Shape shape{24, 96};
  std::vector<double> bad;
  for (const StrainedMatrix& matrix : strained_matrices(shape[0], shape[1]))
    if (matrix.spectrum == "rank 2") bad = matrix.values;
  REQUIRE(bad.size() == static_cast<size_t>(shape.elements()));
  const auto backend = make_cpu_backend();
  const auto step = [&](const MuonOptions& of, UpdateCounters& counters) {
    const auto rule = make_muon(of);
    std::vector<UpdateItem> items;
    for (const std::vector<double>& gradient : {bad, std::vector<double>(bad.size(), 0.0), bad}) {
      UpdateItem item;
      item.name = "w", item.parameter = tensor_of(*backend, normal_values(5, shape.elements()), shape, DType::float32);
      item.gradient = tensor_of(*backend, gradient, shape, DType::float32);
      item.state = {tensor_of(*backend, std::vector<double>(bad.size(), 0.0), shape, DType::float32)};
      items.push_back(item);
    }
    for (int64_t i = 1; i <= 2; ++i) {
      rule->prepare(*backend, backend->compute_stream(), {i, 0.1, 1.0});
      rule->global(*backend, backend->compute_stream(), items);
    }
    counters = rule->counters();
    return to_doubles(*backend, items.front().parameter);
  };
  UpdateCounters failing, sound;
  const std::vector<double> found = step(options, failing), expected = step(direct, sound);
  CHECK(failing.newton_schulz_calls == 6);
  CHECK(failing.newton_schulz_guard_events == 4);  // two of three matrices, two steps
  CHECK(sound.newton_schulz_calls == 6);
  CHECK(sound.newton_schulz_guard_events == 0);
  CHECK((found == expected));
}

TEST_CASE("Newton-Schulz in float16 says where it cannot run") {
  MuonOptions options = muon_options("keller");
  options.newton_schulz.dtype = DType::float16;
  CHECK(make_muon(options)->description().at("newton_schulz_dtype").as_string() == "float16");
  CHECK(make_muon({})->description().at("newton_schulz_dtype").as_string() == "float32");
  const auto cpu = make_cpu_backend();
  const auto rule = make_muon(options);
  CHECK_THROWS_AS(rule->prepare(*cpu, cpu->compute_stream(), {1, 0.02, 1.0}), DeviceError);
  CHECK_THROWS_WITH(rule->prepare(*cpu, cpu->compute_stream(), {1, 0.02, 1.0}),
                    Catch::Contains("muon") && Catch::Contains("newton_schulz_dtype") && Catch::Contains("float32"));
  const Tensor matrix = cpu->allocate(Shape{2, 3}, DType::float32, MemoryCategory::workspace, "test");
  CHECK_THROWS_AS(NewtonSchulzEngine(*cpu).orthogonalize(cpu->compute_stream(), options.newton_schulz, {&matrix, 1}), DeviceError);
  options.newton_schulz.normalization = Normalization::spectral;
  CHECK_THROWS_AS(make_muon(options), ConfigError);
  options.newton_schulz.normalization = Normalization::frobenius;
  options.newton_schulz.dtype = DType::bfloat16;
  CHECK_THROWS_AS(make_muon(options), ConfigError);
}

TEST_CASE("descriptions tell apart whatever changes the result") {
  std::vector<MuonOptions> variants(1, muon_options("keller"));
  const auto vary = [&](auto change) {
    variants.push_back(variants.front());
    change(variants.back());
  };
  vary([](MuonOptions& o) { o.momentum_form = MomentumForm::sum; });
  vary([](MuonOptions& o) { o.nesterov = false; });
  vary([](MuonOptions& o) { o.momentum = 0.9; });
  vary([](MuonOptions& o) { o.momentum_warmup_steps = 5; });
  vary([](MuonOptions& o) { o.newton_schulz.coefficients = "you5"; });
  vary([](MuonOptions& o) { o.newton_schulz.iterations = 6; });
  vary([](MuonOptions& o) { o.newton_schulz.form = IterationForm::direct; });
  vary([](MuonOptions& o) { o.newton_schulz.restarts = {1, 3}; });
  vary([](MuonOptions& o) {  // you5 has restarts in its table
    o.newton_schulz.coefficients = "you5";
    o.newton_schulz.disable_restarts = true;
  });
  vary([](MuonOptions& o) { o.newton_schulz.dtype = DType::float16; });
  vary([](MuonOptions& o) { o.tune_numerics = true; });
  vary([](MuonOptions& o) { o.newton_schulz.measured_forms = {{8, 8, IterationForm::gram}}; });
  vary([](MuonOptions& o) { o.newton_schulz.epsilon_mode = EpsilonMode::clamp; });
  vary([](MuonOptions& o) { o.newton_schulz.epsilon = 1e-8; });
  vary([](MuonOptions& o) { o.newton_schulz.safety = 1.02; });
  vary([](MuonOptions& o) { o.scale = ScaleMode::match_rms; });
  vary([](MuonOptions& o) { o.scale_factor = 0.2; });
  vary([](MuonOptions& o) { o.weight_decay = 0.1; });
  for (size_t i = 0; i < variants.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      INFO(i << " and " << j);
      CHECK(make_muon(variants[i])->description().dump() != make_muon(variants[j])->description().dump());
    }
  MuonOptions workspace = variants.front();
  workspace.workspace_bytes = 1;  // changes no bits
  CHECK(make_muon(workspace)->description().dump() == make_muon(variants.front())->description().dump());
}
