// Arithmetic on numbers that come from files or users: overflow is reported, never wrapped.
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <optional>

namespace dmuon {

template <std::integral T>
std::optional<T> checked_multiply(T a, T b) {
  T result;
  if (__builtin_mul_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::integral T>
std::optional<T> checked_add(T a, T b) {
  T result;
  if (__builtin_add_overflow(a, b, &result)) return std::nullopt;
  return result;
}

template <std::integral To, std::integral From>
std::optional<To> checked_cast(From value) {
  To result = static_cast<To>(value);
  if (static_cast<From>(result) != value || ((result < To{}) != (value < From{}))) return std::nullopt;
  return result;
}

// Quotient rounded up, and the next multiple; b > 0, a >= 0.
constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t round_up(int64_t a, int64_t b) { return divide_up(a, b) * b; }

}  // namespace dmuon
