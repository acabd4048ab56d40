// Tuning of Muon: bits stay where they were promised to stay, choices travel as JSON and are replayed.
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/optim/adamw.h"
#include "dmuon/optim/muon.h"
#include "optim/optimizer_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

const Shape shapes[] = {Shape{24, 24}, Shape{16, 40}, Shape{40, 16}, Shape{8, 2, 3, 3}};

// One step over three matrices of every shape.
std::vector<std::vector<double>> step(Backend& backend, UpdateRule& rule) {
  std::vector<UpdateItem> items;
  uint64_t seed = 0;
  for (const Shape& shape : shapes)
    for (int i = 0; i < 3; ++i) {
      UpdateItem item;
      item.name = text("w", seed);
      item.parameter = tensor_of(backend, normal_values(++seed, shape.elements()), shape, DType::float32);
      item.gradient = tensor_of(backend, normal_values(++seed, shape.elements()), shape, DType::float32);
      item.state = {tensor_of(backend, std::vector<double>(static_cast<size_t>(shape.elements()), 0.0), shape, DType::float32)};
      items.push_back(item);
    }
  rule.prepare(backend, backend.compute_stream(), {1, 0.1, 1.0});
  rule.global(backend, backend.compute_stream(), items);
  std::vector<std::vector<double>> result;
  for (const UpdateItem& item : items) result.push_back(to_doubles(backend, item.parameter));
  return result;
}

std::vector<ShapeCount> counted() {
  std::vector<ShapeCount> result;
  for (const Shape& shape : shapes) result.push_back({shape, 3});
  return result;
}

std::unique_ptr<Backend> threads(int count) { return make_cpu_backend({HostMode::normal, count, 1, "auto"}); }

}  // namespace

TEST_CASE("tuned or not, and whatever placement is adopted, an update has the same bits") {
  const auto backend = threads(2);
  const auto plain = make_muon(muon_options("custom"));
  const auto expected = step(*backend, *plain);
  const auto tuned = make_muon(muon_options("custom"));
  const Json choices = tuned->tune(*backend, counted(), nullptr);
  CHECK(choices.at("placements").as_object().size() == 4);
  CHECK(choices.at("placements").find("8x18") != nullptr);
  CHECK(choices.find("measured_forms") == nullptr);
  CHECK((step(*backend, *tuned) == expected));
  CHECK(tuned->description() == plain->description());
  for (const char* placement : {R"({"batch": 1, "queues": 1})", R"({"batch": 2, "queues": 2})", R"({"batch": 7, "queues": 3})"}) {
    const auto other = make_muon(muon_options("custom"));
    other->adopt(parse_json(text(R"({"placements": {"24x24": )", placement, R"(, "16x40": )", placement, "}}"), "test"));
    CHECK((step(*backend, *other) == expected));
    CHECK((step(*threads(3), *other) == expected));
  }
}

TEST_CASE("measured forms are described, travel, are kept and change what they say") {
  MuonOptions options = muon_options("custom");
  options.tune_numerics = true;
  const auto backend = threads(1);
  const auto tuned = make_muon(options), adopting = make_muon(options), replayed = make_muon(options);
  const Json choices = tuned->tune(*backend, counted(), nullptr);
  CHECK(choices.at("measured_forms").as_object().size() == 4);
  adopting->adopt(parse_json(choices.dump(), "test"));
  CHECK(adopting->description() == tuned->description());
  CHECK(tuned->description().at("measured_forms") == choices.at("measured_forms"));
  CHECK((step(*backend, *adopting) == step(*backend, *tuned)));

  // What is known already is not measured again.
  const Json forms = parse_json(R"({"measured_forms": {"16x40": "direct", "24x24": "gram"}})", "test");
  replayed->adopt(forms);
  const Json again = replayed->tune(*backend, counted(), nullptr);
  CHECK(again.at("measured_forms").at("16x40") == Json("direct"));
  CHECK(again.at("measured_forms").at("24x24") == Json("gram"));
  MuonOptions direct = muon_options("custom"), gram = direct;
  direct.newton_schulz.form = IterationForm::direct, gram.newton_schulz.form = IterationForm::gram;
  const auto found = step(*backend, *replayed), all_direct = step(*backend, *make_muon(direct)),
             all_gram = step(*backend, *make_muon(gram));
  for (size_t i = 0; i < 3; ++i) {
    CHECK((found[i] == all_gram[i] && found[i] != all_direct[i]));
    CHECK((found[3 + i] == all_direct[3 + i] && found[3 + i] != all_gram[3 + i]));
  }
}

TEST_CASE("choices that this rule cannot have made are refused") {
  const auto rule = make_muon(muon_options("custom"));
  const auto refused = [&](const char* json) {
    INFO(json);
    CHECK_THROWS_AS(rule->adopt(parse_json(json, "test")), ConfigError);
  };
  refused(R"({"measured_forms": {"16x40": "gram"}})");  // tune_numerics is off
  refused(R"({"placement": {}})");
  refused(R"({"placements": {"16": {"batch": 1, "queues": 1}}})");
  refused(R"({"placements": {"16x40": {"batch": 0, "queues": 1}}})");
  refused(R"({"placements": {"16x40": {"batch": 1, "queues": 2}}})");
  refused(R"({"placements": {"16x40": {"batch": 1}}})");
  refused("[]");
  CHECK_NOTHROW(rule->adopt(parse_json("{}", "test")));
}

TEST_CASE("a shape-only step predicts the workspace of a real one to the byte, tuned or not") {
  const auto peak_of = [](HostMode mode, int count, const Json& choices) {
    const auto backend = make_cpu_backend({mode, count, 1, "auto"});
    const auto rule = make_muon(muon_options("moonlight"));
    rule->adopt(choices);
    std::vector<UpdateItem> items;
    for (const Shape& shape : {Shape{96, 96}, Shape{64, 160}, Shape{160, 64}})
      for (int i = 0; i < 5; ++i) {
        UpdateItem item;
        item.name = "w";
        for (Tensor* tensor : {&item.parameter, &item.gradient})
          *tensor = backend->allocate(shape, DType::float32, MemoryCategory::parameters, "test");
        item.state = {backend->allocate(shape, DType::float32, MemoryCategory::parameters, "test")};
        if (mode != HostMode::shape_only)
          for (const Tensor& tensor : {item.parameter, item.gradient, item.state.front()})
            from_doubles(*backend, normal_values(static_cast<uint64_t>(i), shape.elements()), tensor);
        items.push_back(item);
      }
    rule->prepare(*backend, backend->compute_stream(), {1, 0.1, 1.0});
    rule->global(*backend, backend->compute_stream(), items);
    return backend->allocator().statistics()[MemoryCategory::workspace].peak;
  };
  const Json tuned = parse_json(R"({"placements": {"64x160": {"batch": 4, "queues": 2}}})", "test");
  for (const Json& choices : {Json::object(), tuned})
    for (int count : {1, 2, 3}) {
      const int64_t predicted = peak_of(HostMode::shape_only, count, choices);
      CHECK(predicted > 0);
      CHECK(peak_of(HostMode::normal, count, choices) == predicted);
    }
}

TEST_CASE("a rule without choices has none") {
  const auto backend = threads(1);
  const auto rule = make_adamw({});
  const Json choices = rule->tune(*backend, counted(), nullptr);
  CHECK(choices.as_object().empty());
  CHECK_NOTHROW(rule->adopt(choices));
}
