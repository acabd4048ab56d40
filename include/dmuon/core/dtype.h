// Element types. bfloat16 and float16 are storage types: kernels widen them to float before arithmetic.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace dmuon {

enum class DType : uint8_t { float32, float64, bfloat16, float16, int64, int32, int16, int8, uint8 };

int64_t size_of(DType dtype);
std::string_view name_of(DType dtype);         // "float32"
DType dtype_from_name(std::string_view name);  // throws ConfigError naming the allowed values
bool is_floating(DType dtype);

// The upper half of an IEEE binary32.
struct bfloat16 {
  uint16_t bits = 0;
  bfloat16() = default;
  // Rounds to nearest, ties to even; NaN stays NaN.
  explicit bfloat16(float value) {
    uint32_t u = std::bit_cast<uint32_t>(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) {
      bits = static_cast<uint16_t>((u >> 16) | 0x0040u);
      return;
    }
    bits = static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }
};

// IEEE binary16; conversions round to nearest even and keep subnormals, infinities and NaN.
struct float16 {
  uint16_t bits = 0;
  float16() = default;
  explicit float16(float value);
  explicit operator float() const;
};

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::float32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::float64;
};
template <>
struct DTypeOf<bfloat16> {
  static constexpr DType value = DType::bfloat16;
};
template <>
struct DTypeOf<float16> {
  static constexpr DType value = DType::float16;
};
template <>
struct DTypeOf<int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct DTypeOf<int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct DTypeOf<int16_t> {
  static constexpr DType value = DType::int16;
};
template <>
struct DTypeOf<int8_t> {
  static constexpr DType value = DType::int8;
};
template <>
struct DTypeOf<uint8_t> {
  static constexpr DType value = DType::uint8;
};

}  // namespace dmuon
