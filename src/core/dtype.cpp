#include "dmuon/core/dtype.h"

#include <cmath>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int64_t size;
  bool floating;
};
constexpr Row rows[] = {
    {DType::float32, "float32", 4, true}, {DType::float64, "float64", 8, true}, {DType::bfloat16, "bfloat16", 2, true},
    {DType::float16, "float16", 2, true}, {DType::int64, "int64", 8, false},    {DType::int32, "int32", 4, false},
    {DType::int16, "int16", 2, false},    {DType::int8, "int8", 1, false},      {DType::uint8, "uint8", 1, false},
};
const Row& row(DType dtype) { return rows[static_cast<size_t>(dtype)]; }

}  // namespace

int64_t size_of(DType dtype) { return row(dtype).size; }
std::string_view name_of(DType dtype) { return row(dtype).name; }
bool is_floating(DType dtype) { return row(dtype).floating; }

DType dtype_from_name(std::string_view name) {
  std::string allowed;
  for (const Row& r : rows) {
    if (r.name == name) return r.dtype;
    allowed += allowed.empty() ? "" : ", ";
    allowed += r.name;
  }
  throw ConfigError(text("unknown dtype \"", name, "\"; allowed: ", allowed));
}

float16::float16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (u >> 16) & 0x8000u;
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    bits = static_cast<uint16_t>(sign | 0x7e00u);
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65520 or above: infinity
    bits = static_cast<uint16_t>(sign | 0x7c00u);
  } else if (magnitude < 0x38800000u) {  // below 2^-14: subnormal, in units of 2^-24
    bits = static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(std::bit_cast<float>(magnitude) * 16777216.0f)));
  } else {
    const uint32_t rounded = magnitude + 0x0fffu + ((magnitude >> 13) & 1u);
    bits = static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
  }
}

float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -value : value;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace dmuon
