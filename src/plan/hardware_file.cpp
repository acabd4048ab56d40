#include <algorithm>
#include <cmath>
#include <map>

#include "dmuon/core/error.h"
#include "dmuon/core/file.h"
#include "dmuon/core/text.h"
#include "dmuon/plan/hardware.h"
#include "plan/strict_object.h"

namespace dmuon {
namespace {

constexpr double huge = 1e30;

ProductCounts read_counts(StrictObject& object) {
  const auto part = [&](const std::string& key, double& symmetric, double& full) {
    StrictObject counts = object.object_at(key);
    symmetric = counts.number_at("symmetric", 0.0, 1e6);
    full = counts.number_at("full", 0.0, 1e6);
    counts.finish();
  };
  ProductCounts counts;
  part("outer", counts.outer_symmetric, counts.outer_full);
  part("inner", counts.inner_symmetric, counts.inner_full);
  return counts;
}

struct Timing {
  int64_t columns = 0;
  double seconds = 0.0;
};

// Least squares of times(n) of one m over the two parts of the cost: exact for two lengths.
RatePoint rates_of_times(const Hardware& hardware, int64_t m, const std::vector<Timing>& times, const ProductCounts& counts,
                         const StrictObject& table) {
  const ProductCounts inner_only{0.0, 0.0, counts.inner_symmetric, counts.inner_full};
  const ProductCounts outer_only{counts.outer_symmetric, counts.outer_full, 0.0, 0.0};
  double outer_outer = 0.0, outer_inner = 0.0, inner_inner = 0.0, outer_time = 0.0, inner_time = 0.0;
  for (const Timing& time : times) {
    const double outer = filled_flops(hardware, outer_only, m, time.columns, 1),
                 inner = filled_flops(hardware, inner_only, m, time.columns, 1);
    outer_outer += outer * outer, outer_inner += outer * inner, inner_inner += inner * inner;
    outer_time += outer * time.seconds, inner_time += inner * time.seconds;
  }
  const double determinant = outer_outer * inner_inner - outer_inner * outer_inner;
  const double seconds_per_outer = (inner_inner * outer_time - outer_inner * inner_time) / determinant;
  const double seconds_per_inner = (outer_outer * inner_time - outer_inner * outer_time) / determinant;
  if (!(determinant > 1e-9 * outer_outer * inner_inner) || seconds_per_outer <= 0.0 || seconds_per_inner <= 0.0)
    table.fail("times", text("rows with the smaller side ", m, " need two different lengths, the longer one slower"));
  const double outer_rate = 1.0 / seconds_per_outer, inner_rate = 1.0 / seconds_per_inner;
  return {m, outer_rate, outer_rate, inner_rate, inner_rate};
}

std::vector<RatePoint> read_rates(StrictObject table, const Hardware& hardware) {
  std::vector<RatePoint> points;
  table.text_at("source");
  const std::string kind = table.text_at("kind");
  if (kind == "products") {
    for (size_t i = 0; i < table.array_at("products").size(); ++i) {
      StrictObject row = table.element("products", i);
      const int64_t size = row.integer_at("size", 1, 1 << 24);
      const double full = row.number_at("full_flops_per_second", 1.0, huge);
      const double symmetric =
          row.find("symmetric_flops_per_second") == nullptr ? full : row.number_at("symmetric_flops_per_second", 1.0, huge);
      row.finish();
      if (!points.empty() && size <= points.back().size) table.fail("products", "sizes must ascend");
      points.push_back({size, symmetric, full, symmetric, full});
    }
    if (points.empty()) table.fail("products", "expected at least one row");
  } else if (kind == "newton_schulz") {
    const ProductCounts counts = read_counts(table);
    std::map<int64_t, std::vector<Timing>> times;
    for (size_t i = 0; i < table.array_at("times").size(); ++i) {
      StrictObject row = table.element("times", i);
      const int64_t rows = row.integer_at("rows", 1, 1 << 24), columns = row.integer_at("columns", 1, 1 << 24);
      times[std::min(rows, columns)].push_back({std::max(rows, columns), row.number_at("seconds", 1e-12, 1e6)});
      row.finish();
    }
    if (times.empty()) table.fail("times", "expected at least two rows");
    for (const auto& [m, timings] : times) points.push_back(rates_of_times(hardware, m, timings, counts, table));
  } else {
    table.fail("kind", text("\"", kind, "\" is not one of products, newton_schulz"));
  }
  table.finish();
  return points;
}

std::vector<NewtonSchulzSchedule> read_schedules(StrictObject& lists, const std::string& key,
                                                 const std::map<std::string, std::vector<RatePoint>>& tables) {
  std::vector<NewtonSchulzSchedule> schedules;
  for (size_t i = 0; i < lists.array_at(key).size(); ++i) {
    StrictObject row = lists.element(key, i);
    NewtonSchulzSchedule schedule;
    schedule.name = row.text_at("name");
    schedule.counts = read_counts(row);
    schedule.launches = row.number_at("launches", 0.0, 1e6);
    const std::string kernels = row.text_at("kernels");
    const auto table = tables.find(kernels);
    if (table == tables.end()) row.fail("kernels", text("there is no kernel table \"", kernels, "\""));
    schedule.rates = table->second;
    row.finish();
    schedules.push_back(std::move(schedule));
  }
  if (schedules.empty()) lists.fail(key, "expected at least one schedule");
  return schedules;
}

NetworkLevel read_level(StrictObject network, const std::string& key) {
  StrictObject object = network.object_at(key);
  NetworkLevel level;
  level.bytes_per_second = object.sourced_at("bytes_per_second", 1.0, huge);
  level.latency_seconds = object.sourced_at("latency_seconds", 0.0, 10.0);
  object.finish();
  return level;
}

}  // namespace

Hardware hardware_from_json(const Json& json, std::string_view origin) {
  StrictObject file(json, std::string(origin));
  Hardware hardware;
  hardware.name = file.text_at("name");
  hardware.note = file.text_or("note", "");
  hardware.ranks_per_node = file.integer_at("ranks_per_node", 1, 1 << 20);
  hardware.peak_flops_per_second = file.sourced_at("peak_flops_per_second", 1.0, huge);
  hardware.training_efficiency = file.sourced_at("training_efficiency", 1e-6, 1.0);
  hardware.memory_bytes = file.sourced_at("memory_bytes", 1.0, huge);
  hardware.memory_bytes_per_second = file.sourced_at("memory_bytes_per_second", 1.0, huge);
  hardware.kernel_launch_seconds = file.sourced_or("kernel_launch_seconds", 0.0, 1.0, 0.0);
  hardware.compute_units = static_cast<int64_t>(file.sourced_or("compute_units", 0.0, 1e6, 0.0));
  hardware.tile = static_cast<int64_t>(file.sourced_or("tile", 0.0, 1e6, 0.0));
  if ((hardware.compute_units > 0) != (hardware.tile > 0)) file.fail("tile", "compute_units and tile go together");

  StrictObject network = file.object_at("network");
  hardware.intra = read_level(network, "intra");
  hardware.inter = read_level(network, "inter");
  network.find("intra"), network.find("inter");
  hardware.collective_seconds = network.sourced_at("collective_seconds", 0.0, 10.0);
  hardware.parameter_wire_bytes = network.sourced_at("parameter_bytes", 1.0, 8.0);
  hardware.gradient_wire_bytes = network.sourced_at("gradient_bytes", 1.0, 8.0);
  network.finish();

  StrictObject kernels = file.object_at("kernels");
  std::map<std::string, std::vector<RatePoint>> tables;
  for (const auto& [name, table] : file.at("kernels").as_object()) tables[name] = read_rates(kernels.object_at(name), hardware);
  kernels.finish();
  StrictObject schedules = file.object_at("schedules");
  hardware.owner = read_schedules(schedules, "owner", tables);
  hardware.gather = read_schedules(schedules, "gather", tables);
  schedules.finish();
  hardware.largest_batch = static_cast<int64_t>(file.sourced_at("largest_batch", 1.0, 4096.0));
  hardware.matrix_update_passes = file.sourced_at("matrix_update_passes", 0.0, 1000.0);
  hardware.adamw_passes = file.sourced_at("adamw_passes", 0.0, 1000.0);
  StrictObject elementwise = file.object_at("elementwise_tensors");
  const std::string divided = elementwise.text_at("divided_over");
  if (divided != "node" && divided != "all_ranks")
    elementwise.fail("divided_over", text("\"", divided, "\" is not one of node, all_ranks"));
  hardware.elementwise_per_node = divided == "node";
  elementwise.text_at("source");
  elementwise.finish();
  file.finish();
  return hardware;
}

Hardware load_hardware(const std::filesystem::path& path) {
  return hardware_from_json(parse_json(read_file(path, int64_t{16} << 20), path.string()), path.string());
}

}  // namespace dmuon
