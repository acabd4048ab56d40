#include "dmuon/core/error.h"
#include "dmuon/optim/schedule.h"
#include "optim/optimizer_support.h"
#include "support/catch.h"

using namespace dmuon;
using namespace dmuon::test;

TEST_CASE("schedules equal their golden tables, edges included") {
  const Json data = fixture("optimizer_fixtures.json");
  for (const Json& each : data.at("schedules").as_array()) {
    ScheduleOptions options;
    options.type = schedule_type_from_name(each.at("type").as_string());
    options.warmup_steps = each.at("warmup_steps").as_integer();
    options.total_steps = each.at("total_steps").as_integer();
    options.decay_steps = each.at("decay_steps").as_integer();
    options.decay_shape = decay_shape_from_name(each.at("decay_shape").as_string());
    options.final_fraction = each.at("final_fraction").as_number();
    for (size_t i = 0; i < each.at("steps").as_array().size(); ++i) {
      const int64_t step = each.at("steps").as_array()[i].as_integer();
      INFO(each.dump() << " at step " << step);
      CHECK(scheduled_learning_rate(options, 0.02, step) == Approx(0.02 * each.at("fractions").as_array()[i].as_number()).margin(1e-17));
    }
  }
}

TEST_CASE("by hand: four steps of warm-up, then a linear decay to a tenth") {
  const ScheduleOptions options{ScheduleType::linear, 4, 10, 0, DecayShape::linear, 0.1};
  const double expected[] = {0.25, 0.5, 0.75, 1.0, 0.85, 0.7, 0.55, 0.4, 0.25, 0.1, 0.1, 0.1};
  for (int64_t step = 1; step <= 12; ++step) CHECK(scheduled_learning_rate(options, 1.0, step) == Approx(expected[step - 1]));
  CHECK(scheduled_learning_rate(options, 1.0, 0) == 0.25);
}

TEST_CASE("for every type: the first rate is positive, the last update reaches the final fraction, later ones keep it") {
  for (ScheduleType type : {ScheduleType::constant, ScheduleType::linear, ScheduleType::cosine, ScheduleType::warmup_stable_decay})
    for (int64_t warmup : {0, 1, 3, 50, 60})
      for (int64_t total : {1, 2, 3, 50}) {
        ScheduleOptions options{type, warmup, total, 5, DecayShape::one_minus_sqrt, 0.0};
        INFO(name_of(type) << ", warm-up " << warmup << ", total " << total);
        CHECK(scheduled_learning_rate(options, 1.0, 1) > 0.0);
        const bool decays = type != ScheduleType::constant && std::max<int64_t>(1, warmup) < total;
        if (decays) CHECK(scheduled_learning_rate(options, 1.0, total) == 0.0);
        if (type != ScheduleType::constant)
          CHECK(scheduled_learning_rate(options, 1.0, total + 5) == scheduled_learning_rate(options, 1.0, total));
        for (int64_t step = 1; step <= total + 2; ++step) {
          const double rate = scheduled_learning_rate(options, 1.0, step);
          CHECK((rate >= 0.0 && rate <= 1.0));
        }
      }
}

TEST_CASE("names of schedules") {
  CHECK(schedule_type_from_name("warmup_stable_decay") == ScheduleType::warmup_stable_decay);
  CHECK_THROWS_AS(schedule_type_from_name("cosin"), ConfigError);
  CHECK_THROWS_WITH(schedule_type_from_name("cosin"), Catch::Contains("did you mean \"cosine\""));
  CHECK_THROWS_AS(decay_shape_from_name("sqrt"), ConfigError);
}
