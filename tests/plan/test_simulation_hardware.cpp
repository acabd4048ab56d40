// Hardware files and the cost of one update.
#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"
#include "dmuon/plan/hardware.h"
#include "support/catch.h"
#include "support/paths.h"

using namespace dmuon;

namespace {

std::string path_of(const std::string& name) { return testing::source_directory() + "/configs/hardware/" + name + ".json"; }

// The file with the first `from` replaced.
void refused(const std::string& from, const std::string& to, const std::string& place, const std::string& problem) {
  std::string content = read_file(path_of("a800"));
  const size_t at = content.find(from);
  REQUIRE(at != std::string::npos);
  content.replace(at, from.size(), to);
  INFO(to);
  const Json json = parse_json(content, "h.json");
  CHECK_THROWS_AS(hardware_from_json(json, "h.json"), ConfigError);
  CHECK_THROWS_WITH(hardware_from_json(json, "h.json"), Catch::Contains("h.json: " + place) && Catch::Contains(problem));
}

}  // namespace

TEST_CASE("shipped hardware files load; every rate is positive and below the peak") {
  for (const std::string name : {"a800", "cpu"}) {
    INFO(name);
    const Hardware hardware = load_hardware(path_of(name));
    for (const auto* schedules : {&hardware.owner, &hardware.gather})
      for (const NewtonSchulzSchedule& schedule : *schedules)
        for (const RatePoint& rate : schedule.rates)
          for (double value : {rate.outer_symmetric, rate.outer_full, rate.inner_symmetric, rate.inner_full}) {
            CHECK(value > 0.0);
            CHECK(value < hardware.peak_flops_per_second);
          }
  }
}

TEST_CASE("a shape of the published table costs its published time plus the passes over memory") {
  const Hardware hardware = load_hardware(path_of("a800"));
  const auto check = [&](int64_t rows, int64_t columns, double microseconds) {
    const double passes = 15.0 * 4.0 * static_cast<double>(rows * columns) / 2e12;
    CHECK(newton_schulz_seconds(hardware, hardware.owner, rows, columns, 1) == Approx(microseconds * 1e-6).epsilon(1e-9));
    CHECK(newton_schulz_seconds(hardware, hardware.owner, columns, rows, 1) == Approx(microseconds * 1e-6).epsilon(1e-9));
    CHECK(matrix_update_seconds(hardware, rows, columns, 1) == Approx(microseconds * 1e-6 + passes).epsilon(1e-9));
  };
  check(5120, 5120, 14127.0);
  check(7168, 7168, 36723.0);
  check(3584, 18944, 11216.0);
  check(4096, 14336, 12730.0);
}

// DMuon's paper, figure 7: at batch 16 a matrix of 1024 x 1024 costs about a third of one alone, one of 2048 x 22016
// little less.
TEST_CASE("batches pay for small matrices and little for large ones, as published") {
  Hardware hardware = load_hardware(path_of("a800"));
  hardware.kernel_launch_seconds = 0.0;
  const auto gain = [&](int64_t rows, int64_t columns) {
    return newton_schulz_seconds(hardware, hardware.owner, rows, columns, 16) / 16.0 /
           newton_schulz_seconds(hardware, hardware.owner, rows, columns, 1);
  };
  CHECK(gain(1024, 1024) > 0.25);
  CHECK(gain(1024, 1024) < 0.5);
  CHECK(gain(2048, 22016) > 0.75);
  CHECK(gain(2048, 22016) <= 1.0);
}

TEST_CASE("occupancy counts the idle units of the last wave") {
  Hardware hardware;
  CHECK(occupancy(hardware, 7) == 1.0);
  hardware.compute_units = 10;
  CHECK(occupancy(hardware, 5) == Approx(0.5));
  CHECK(occupancy(hardware, 10) == Approx(1.0));
  CHECK(occupancy(hardware, 11) == Approx(0.55));
}

TEST_CASE("times grow with every side, between and outside the sizes of the table") {
  for (const std::string name : {"a800", "cpu"}) {
    Hardware hardware = load_hardware(path_of(name));
    hardware.kernel_launch_seconds = 0.0;
    for (int64_t m = 64; m < 9000; m = m * 5 / 4) {
      INFO(name << " " << m);
      const double here = newton_schulz_seconds(hardware, hardware.owner, m, 2 * m, 1);
      CHECK(here > 0.0);
      CHECK(newton_schulz_seconds(hardware, hardware.owner, m, 4 * m, 1) >= here);
      CHECK(newton_schulz_seconds(hardware, hardware.owner, 2 * m, 4 * m, 1) > here);
    }
  }
}

TEST_CASE("a damaged hardware file is refused with file and key") {
  refused("\"ranks_per_node\": 8", "\"ranks_per_node\": 0", "ranks_per_node", "from 1");
  refused("\"memory_bytes\":", "\"memory_byte\":", "memory_bytes", "missing");
  refused("{\"value\": 80e9, \"source\": \"data sheet\"}", "80e9", "memory_bytes", "expected an object, found number");
  refused("{\"value\": 80e9, \"source\": \"data sheet\"}", "{\"value\": 80e9}", "memory_bytes.source", "missing");
  refused("{\"value\": 80e9", "{\"value\": -1", "memory_bytes.value", "expected a number");
  refused("\"largest_batch\": {", "\"largest_batches\": 1, \"largest_batch\": {", "largest_batches", "unknown key");
  refused("\"tile\": {\"value\": 128", "\"tile\": {\"value\": 0", "tile", "go together");
  refused("\"kind\": \"newton_schulz\"", "\"kind\": \"guess\"", "kernels.symmetric.kind", "not one of");
  refused("\"seconds\": 14127e-6", "\"seconds\": 99127e-6", "kernels.symmetric.times", "smaller side 5120");
  refused("\"columns\": 13824", "\"columns\": 5120", "kernels.symmetric.times", "smaller side 5120");
  refused("\"kernels\": \"symmetric\"", "\"kernels\": \"symetric\"", "schedules.owner[0].kernels", "no kernel table \"symetric\"");
  refused("\"divided_over\": \"node\"", "\"divided_over\": \"pod\"", "elementwise_tensors.divided_over", "not one of");
  refused("\"latency_seconds\": {\"value\": 14e-6", "\"latency_seconds\": {\"value\": \"x\"", "network.inter.latency_seconds.value",
          "expected a number");
  CHECK_THROWS_AS(load_hardware("/nowhere/h.json"), StorageError);
}
