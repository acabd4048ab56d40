#include "dmuon/plan/hardware.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dmuon {
namespace {

// Linear in log(size) between table rows; the nearest row's rate outside the table.
RatePoint rates_at(const std::vector<RatePoint>& rows, int64_t size) {
  if (size <= rows.front().size) return rows.front();
  if (size >= rows.back().size) return rows.back();
  const auto above = std::find_if(rows.begin(), rows.end(), [&](const RatePoint& row) { return row.size >= size; });
  const RatePoint &a = *(above - 1), &b = *above;
  const double weight = std::log(static_cast<double>(size) / static_cast<double>(a.size)) /
                        std::log(static_cast<double>(b.size) / static_cast<double>(a.size));
  const auto mix = [&](double x, double y) { return x + weight * (y - x); };
  return {size, mix(a.outer_symmetric, b.outer_symmetric), mix(a.outer_full, b.outer_full), mix(a.inner_symmetric, b.inner_symmetric),
          mix(a.inner_full, b.inner_full)};
}

double schedule_seconds(const Hardware& hardware, const NewtonSchulzSchedule& schedule, int64_t rows, int64_t columns, int64_t batch) {
  const int64_t m = std::min(rows, columns), n = std::max(rows, columns);
  const RatePoint rate = rates_at(schedule.rates, m);
  const ProductCounts& count = schedule.counts;
  const double seconds = filled_flops(hardware, {count.outer_symmetric, 0.0, 0.0, 0.0}, m, n, batch) / rate.outer_symmetric +
                         filled_flops(hardware, {0.0, count.outer_full, 0.0, 0.0}, m, n, batch) / rate.outer_full +
                         filled_flops(hardware, {0.0, 0.0, count.inner_symmetric, 0.0}, m, n, batch) / rate.inner_symmetric +
                         filled_flops(hardware, {0.0, 0.0, 0.0, count.inner_full}, m, n, batch) / rate.inner_full;
  return std::max(seconds, schedule.launches * hardware.kernel_launch_seconds);
}

}  // namespace

double occupancy(const Hardware& hardware, double tiles) {
  if (hardware.compute_units == 0) return 1.0;
  const double units = static_cast<double>(hardware.compute_units);
  return tiles / (units * std::ceil(tiles / units));
}

double filled_flops(const Hardware& hardware, const ProductCounts& counts, int64_t smaller, int64_t larger, int64_t batch) {
  const double m = static_cast<double>(smaller), n = static_cast<double>(larger), copies = static_cast<double>(batch);
  const double tile = static_cast<double>(std::max<int64_t>(hardware.tile, 1));
  const double short_edge = std::ceil(m / tile), long_edge = std::ceil(n / tile);
  const double triangle = occupancy(hardware, copies * short_edge * (short_edge + 1.0) / 2.0);
  const double square = occupancy(hardware, copies * short_edge * short_edge);
  const double wide = occupancy(hardware, copies * short_edge * long_edge);
  return copies * m * m *
         (n * (counts.outer_symmetric / triangle + counts.outer_full / wide) +
          m * (counts.inner_symmetric / triangle + counts.inner_full / square));
}

double newton_schulz_seconds(const Hardware& hardware, const std::vector<NewtonSchulzSchedule>& schedules, int64_t rows, int64_t columns,
                             int64_t batch) {
  double best = std::numeric_limits<double>::infinity();
  for (const NewtonSchulzSchedule& schedule : schedules) best = std::min(best, schedule_seconds(hardware, schedule, rows, columns, batch));
  return best;
}

MatrixBatch matrix_batch(const Shape& shape, int64_t batch) {
  if (shape.rank() == 2) return {shape[0], shape[1], batch};
  return {shape[1], shape[2], shape[0] * batch};
}

double matrix_update_seconds(const Hardware& hardware, int64_t rows, int64_t columns, int64_t batch) {
  const double bytes =
      4.0 * hardware.matrix_update_passes * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(batch);
  return newton_schulz_seconds(hardware, hardware.owner, rows, columns, batch) + bytes / hardware.memory_bytes_per_second;
}

}  // namespace dmuon
