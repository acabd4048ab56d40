#include "dmuon/core/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace dmuon {

std::string format_bytes(int64_t bytes) {
  static constexpr const char* units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::fabs(value) >= 999.5 && unit + 1 < std::size(units)) {
    value /= 1000.0;
    ++unit;
  }
  char buffer[48];
  const int digits = unit == 0 || std::fabs(value) >= 99.95 ? 0 : std::fabs(value) >= 9.995 ? 1 : 2;
  std::snprintf(buffer, sizeof buffer, "%.*f %s", digits, value, units[unit]);
  return buffer;
}

std::string format_count(int64_t count) {
  std::string digits = std::to_string(count);
  const size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3; i -= 3) digits.insert(i - 3, 1, ',');
  return digits;
}

std::string format_number(double value, int digits) {
  if (std::isnan(value)) return "nan";  // its sign means nothing
  char buffer[64];
  const double magnitude = std::fabs(value);
  const bool fixed = magnitude == 0.0 || !std::isfinite(value) || (magnitude >= 1e-3 && magnitude < 1e7);
  std::snprintf(buffer, sizeof buffer, fixed ? "%.*f" : "%.*e", fixed ? digits : std::min(digits, 3), value);
  return buffer;
}

std::string format_duration(double seconds) {
  char buffer[48];
  if (!std::isfinite(seconds) || seconds < 0) return "unknown";
  if (seconds < 59.95) {
    std::snprintf(buffer, sizeof buffer, "%.1fs", seconds);
    return buffer;
  }
  const int64_t whole = std::llround(seconds);
  const long long hours = whole / 3600, minutes = whole / 60 % 60, rest = whole % 60;
  if (hours > 0)
    std::snprintf(buffer, sizeof buffer, "%lldh%02lldm%02llds", hours, minutes, rest);
  else
    std::snprintf(buffer, sizeof buffer, "%lldm%02llds", minutes, rest);
  return buffer;
}

std::string nearest(std::string_view name, const std::vector<std::string>& candidates) {
  // Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours.
  const auto distance = [](std::string_view a, std::string_view b) {
    std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
    for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
    for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
    for (size_t i = 1; i <= a.size(); ++i)
      for (size_t j = 1; j <= b.size(); ++j) {
        d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
        if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    return d[a.size()][b.size()];
  };
  const std::string_view shortened = name.substr(0, 256);
  std::string best;
  size_t best_distance = std::max<size_t>(2, shortened.size() / 3) + 1;
  for (const auto& candidate : candidates)
    if (const size_t d = distance(shortened, candidate); d < best_distance) {
      best = candidate;
      best_distance = d;
    }
  return best;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string out;
  for (const auto& part : parts) {
    if (&part != parts.data()) out += separator;
    out += part;
  }
  return out;
}

namespace {

// Columns on a terminal: UTF-8 continuation bytes take none.
size_t width_of(std::string_view cell) {
  return static_cast<size_t>(std::count_if(cell.begin(), cell.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

}  // namespace

std::string format_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  std::vector<bool> numeric;
  for (size_t r = 0; r < rows.size(); ++r)
    for (size_t c = 0; c < rows[r].size(); ++c) {
      if (c >= widths.size()) {
        widths.push_back(0);
        numeric.push_back(true);
      }
      widths[c] = std::max(widths[c], width_of(rows[r][c]));
      const bool number = rows[r][c].empty() || rows[r][c] == "-" || rows[r][c].find_first_of("0123456789") <= 1;
      if (r > 0 && !number) numeric[c] = false;
    }
  std::string out;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < rows[r].size(); ++c) {
      const std::string padding(widths[c] - width_of(rows[r][c]), ' ');
      line += c > 0 ? "  " : "";
      line += numeric[c] ? padding + rows[r][c] : rows[r][c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
    if (r == 0) {
      std::string rule;
      for (size_t c = 0; c < widths.size(); ++c) rule += (c > 0 ? "  " : "") + std::string(widths[c], '-');
      out += rule + "\n";
    }
  }
  return out;
}

}  // namespace dmuon
