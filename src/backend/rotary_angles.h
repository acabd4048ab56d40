// The frequencies of rotary positions, the same numbers on every backend.
#pragma once

#include <cmath>
#include <cstdint>

namespace dmuon {

// theta^(-2 pair / channels) as float32, in the roundings that published models were trained with: the exponent in float32, the
// power rounded to float32, then its reciprocal.
inline float rotary_frequency(double theta, int64_t pair, int64_t channels) {
  const float exponent = static_cast<float>(2 * pair) / static_cast<float>(channels);
  return 1.0f / static_cast<float>(std::pow(static_cast<double>(static_cast<float>(theta)), static_cast<double>(exponent)));
}

}  // namespace dmuon
