#include "backend/convert.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// The narrow conversions are written without branches, so that the loops below are vectorised.

uint16_t narrow_bfloat16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const uint32_t quiet = (u >> 16) | 0x0040u;
  return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

uint16_t narrow_float16(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = u & 0x7fffffffu;
  const uint32_t normal = (magnitude + 0x0fffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  // Adding 0.5 leaves units of 2^-24 in the last place: the addition itself rounds to a subnormal.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t bits = magnitude < 0x38800000u ? subnormal : normal;
  bits = magnitude >= 0x477ff000u ? 0x7c00u : bits;
  bits = magnitude > 0x7f800000u ? 0x7e00u : bits;
  return static_cast<uint16_t>(bits | ((u >> 16) & 0x8000u));
}

float widen_float16(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + 0x38000000u;
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  const uint32_t subnormal = std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  uint32_t bits = magnitude < 0x0400u ? subnormal : normal;
  bits = magnitude >= 0x7c00u ? special : bits;
  return std::bit_cast<float>(bits | (static_cast<uint32_t>(half & 0x8000u) << 16));
}

// Rounds towards zero and sets the last bit when inexact, so that a second rounding to a shorter type is correct.
float round_to_odd(double value) {
  const float nearest = static_cast<float>(value);
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (static_cast<double>(nearest) == value) return nearest;
  if (std::fabs(static_cast<double>(nearest)) > std::fabs(value)) --bits;
  return std::bit_cast<float>(bits | 1u);
}

// One element of type To from one of type From.
template <class To, class From>
To convert_one(From value) {
  if constexpr (std::is_same_v<From, bfloat16>) {
    return convert_one<To>(std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16));
  } else if constexpr (std::is_same_v<From, float16>) {
    return convert_one<To>(widen_float16(value.bits));
  } else if constexpr (std::is_same_v<To, float> || std::is_same_v<To, double>) {
    return static_cast<To>(value);
  } else if constexpr (std::is_same_v<From, double>) {
    return convert_one<To>(round_to_odd(value));
  } else {
    To result;
    result.bits = std::is_same_v<To, bfloat16> ? narrow_bfloat16(value) : narrow_float16(value);
    return result;
  }
}

template <class From, class To>
void convert_loop(const void* source, void* destination, int64_t count) {
  const From* in = static_cast<const From*>(source);
  To* __restrict out = static_cast<To*>(destination);
  for (int64_t i = 0; i < count; ++i) out[i] = convert_one<To>(in[i]);
}

template <class From>
void convert_from(const void* source, void* destination, DType to, int64_t count) {
  switch (to) {
    case DType::float32:
      return convert_loop<From, float>(source, destination, count);
    case DType::float64:
      return convert_loop<From, double>(source, destination, count);
    case DType::bfloat16:
      return convert_loop<From, bfloat16>(source, destination, count);
    case DType::float16:
      return convert_loop<From, float16>(source, destination, count);
    default:
      throw ShapeError(text("cannot convert floating elements to ", name_of(to)));
  }
}

}  // namespace

void convert_elements(const void* source, DType from, void* destination, DType to, int64_t count) {
  if (count == 0) return;
  if (from == to) {
    std::memcpy(destination, source, static_cast<size_t>(count * size_of(from)));
    return;
  }
  switch (from) {
    case DType::float32:
      return convert_from<float>(source, destination, to, count);
    case DType::float64:
      return convert_from<double>(source, destination, to, count);
    case DType::bfloat16:
      return convert_from<bfloat16>(source, destination, to, count);
    case DType::float16:
      return convert_from<float16>(source, destination, to, count);
    default:
      throw ShapeError(text("cannot convert ", name_of(from), " elements to ", name_of(to)));
  }
}

}  // namespace dmuon
