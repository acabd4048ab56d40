// The tuner: choices that change no bits, that a cache gives back, and that fit the memory a dry run has counted.
#include "dmuon/newton_schulz/tuner.h"

#include "dmuon/core/error.h"
#include "io/io_support.h"
#include "optim/optimizer_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

namespace {

const MeasurementKey key{"processor", "avx2", "library", 2};
constexpr int64_t megabyte = int64_t{1} << 20;

NewtonSchulzPlacement fixed_placement(int64_t rows, int64_t columns, int64_t count) {
  return newton_schulz_placement({}, rows, columns, DType::float32, count, 2, megabyte);
}

}  // namespace

TEST_CASE("the fixed placement fills the threads and keeps the bound") {
  const NewtonSchulzSpecification specification;
  for (int64_t count : {1, 2, 3, 7, 32})
    for (int threads : {1, 2, 3, 16})
      for (int64_t bound : {int64_t{1}, megabyte, 64 * megabyte})
        for (const auto& [rows, columns] : {std::pair{1, 1}, {128, 128}, {128, 512}, {768, 3072}}) {
          INFO(count << " of " << rows << "x" << columns << " on " << threads << " threads in " << bound);
          const NewtonSchulzPlacement p = newton_schulz_placement(specification, rows, columns, DType::float32, count, threads, bound);
          CHECK((p.batch >= 1 && p.batch <= count && p.queues >= 1 && p.queues <= std::min<int64_t>(p.batch, threads)));
          CHECK((p.batch == 1 || newton_schulz_bytes(specification, rows, columns, DType::float32, p) <= bound));
          if (rows == 128 && count >= threads && bound == 64 * megabyte) CHECK(p.queues == threads);
          if (p.batch < count && p.batch > p.queues) CHECK(p.batch % p.queues == 0);
        }
}

TEST_CASE("a tuned placement fits the memory it is given, and the cache gives it back without measuring") {
  TemporaryDirectory directory;
  const auto backend = make_cpu_backend({HostMode::normal, 2, 1, "auto"});
  const NewtonSchulzSpecification specification;
  NewtonSchulzPlacement chosen;
  {
    MeasurementCache cache("newton_schulz", key, directory.path());
    NewtonSchulzTuner tuner(*backend, &cache);
    chosen = tuner.placement(specification, 16, 48, 6, fixed_placement(16, 48, 6), megabyte);
    CHECK(tuner.measurements() > 0);
    CHECK((chosen.batch >= 1 && chosen.batch <= 6 && chosen.queues <= chosen.batch));
    CHECK(newton_schulz_bytes(specification, 16, 48, DType::float32, chosen) <= megabyte);
    cache.save();
  }
  MeasurementCache cache("newton_schulz", key, directory.path());
  NewtonSchulzTuner again(*backend, &cache);
  const NewtonSchulzPlacement known = again.placement(specification, 16, 48, 6, fixed_placement(16, 48, 6), megabyte);
  CHECK((known.batch == chosen.batch && known.queues == chosen.queues && again.measurements() == 0));
  // Nothing fits but the fixed choice, and a kept one that does not fit is not taken.
  const NewtonSchulzPlacement tight = again.placement(specification, 16, 48, 6, {1, 1}, 1);
  CHECK((tight.batch == 1 && tight.queues == 1));
  // Another count, bound or set is another question.
  again.placement(specification, 16, 48, 5, fixed_placement(16, 48, 5), megabyte);
  CHECK(again.measurements() > 0);
}

TEST_CASE("cache entries of another shape than expected are measured again") {
  const auto backend = make_cpu_backend({HostMode::normal, 2, 1, "auto"});
  const NewtonSchulzSpecification specification;
  MeasurementCache first("newton_schulz", key, {});
  NewtonSchulzTuner(*backend, &first).placement(specification, 8, 8, 4, fixed_placement(8, 8, 4), megabyte);
  // The name under which it was kept: found through a cache that answers nothing else.
  const std::string name = text("placement 8x8 float32 count 4 bytes ", megabyte, " ", specification.description().dump());
  REQUIRE(first.find(name) != nullptr);
  Json bad = Json::object();
  bad.set("batch", 5);
  bad.set("queues", 1);
  for (const Json& value : {Json("x"), Json(3), Json::object(), bad}) {
    MeasurementCache cache("newton_schulz", key, {});
    cache.set(name, value);
    NewtonSchulzTuner tuner(*backend, &cache);
    const NewtonSchulzPlacement p = tuner.placement(specification, 8, 8, 4, fixed_placement(8, 8, 4), megabyte);
    CHECK(tuner.measurements() > 0);
    CHECK((p.batch >= 1 && p.batch <= 4));
  }
}

TEST_CASE("what is too large to be worth it, alone or only counted is not measured") {
  const NewtonSchulzSpecification specification;
  const auto backend = make_cpu_backend({HostMode::normal, 2, 1, "auto"});
  NewtonSchulzTuner impatient(*backend, nullptr, 1e3);
  const NewtonSchulzPlacement fixed = fixed_placement(64, 64, 4);
  const NewtonSchulzPlacement p = impatient.placement(specification, 64, 64, 4, fixed, megabyte);
  CHECK((p.batch == fixed.batch && p.queues == fixed.queues));
  CHECK(impatient.form(specification, 64, 64) == IterationForm::direct);
  CHECK(impatient.measurements() == 0);
  NewtonSchulzTuner tuner(*backend, nullptr);
  CHECK(tuner.placement(specification, 64, 64, 1, {}, megabyte).batch == 1);
  CHECK(tuner.measurements() == 0);
  const auto counting = make_cpu_backend({HostMode::shape_only, 2, 1, "auto"});
  NewtonSchulzTuner dry(*counting, nullptr);
  dry.placement(specification, 64, 64, 4, fixed, megabyte);
  dry.form(specification, 64, 64);
  CHECK(dry.measurements() == 0);
}

TEST_CASE("the form is measured where it is plain: Gram for very long matrices") {
  const auto backend = make_cpu_backend({HostMode::normal, 1, 1, "auto"});
  NewtonSchulzTuner tuner(*backend, nullptr);
  CHECK(tuner.form({}, 32, 2048) == IterationForm::gram);
  CHECK(tuner.measurements() > 0);
  NewtonSchulzSpecification specification;
  specification.measured_forms = {{32, 2048, IterationForm::direct}};
  CHECK(newton_schulz_form(specification, 32, 2048) == IterationForm::direct);
  CHECK(newton_schulz_form(specification, 2048, 32) == IterationForm::gram);
  CHECK(specification.description().at("measured_forms").at("32x2048") == Json("direct"));
  specification.form = IterationForm::gram;
  CHECK(newton_schulz_form(specification, 32, 2048) == IterationForm::gram);
}

TEST_CASE("measured forms survive JSON; anything else is refused") {
  const std::vector<MeasuredForm> forms = {{768, 3072, IterationForm::gram}, {5, 5, IterationForm::direct}};
  const std::vector<MeasuredForm> back = measured_forms_from(to_json(forms));
  REQUIRE(back.size() == 2);
  CHECK((back[0].rows == 768 && back[0].columns == 3072 && back[0].form == IterationForm::gram));
  CHECK((back[1].rows == 5 && back[1].columns == 5 && back[1].form == IterationForm::direct));
  for (const char* bad : {R"({"768": "gram"})", R"({"768y3": "gram"})", R"({"768x3 ": "gram"})", R"({"0x3": "gram"})", R"({"3x3": "auto"})",
                          R"({"3x3": "grams"})", R"({"3x3": 1})", R"(["3x3"])"}) {
    INFO(bad);
    CHECK_THROWS_AS(measured_forms_from(parse_json(bad, "test")), ConfigError);
  }
}
