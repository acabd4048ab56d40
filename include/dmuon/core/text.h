// Building messages without a formatting library in every header.
#pragma once

#include <cstdint>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace dmuon {

// Concatenates anything that streams: text("expected ", 3, " got ", name).
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

// 1234567 -> "1.23 MB" (decimal units); 0 -> "0 B".
std::string format_bytes(int64_t bytes);
// 1234567 -> "1,234,567".
std::string format_count(int64_t count);
// 0.000123 -> "1.230e-04"; fixed notation with `digits` decimals where it reads better.
std::string format_number(double value, int digits = 4);
// 3725 -> "1h02m05s"; 4.25 -> "4.2s".
std::string format_duration(double seconds);
// The candidate with the smallest Damerau-Levenshtein distance to `name` if that distance is at most
// max(2, length/3), otherwise an empty string.
std::string nearest(std::string_view name, const std::vector<std::string>& candidates);
// Text before/after joining with a separator.
std::string join(const std::vector<std::string>& parts, std::string_view separator);

// A table whose columns line up; the first row is the header. Numeric-looking cells are right-aligned.
std::string format_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace dmuon
