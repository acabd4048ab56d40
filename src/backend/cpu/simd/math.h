// Vector exponential and error function, accurate to about 1 and 2 units in the last place (measured over all magnitudes
// in tests/cpu). The polynomials are near-minimax fits made for these intervals; NaN stays NaN.
#pragma once

#include "backend/cpu/simd/vector.h"

namespace dmuon::DMUON_SIMD {
namespace {

inline Floats power_of_two(Ints exponent) { return reinterpret_cast<Floats>((exponent + 127) << 23); }

// exp(x) over the whole range: infinity above 88.72, gradual underflow down to 0.
inline Floats exponential(Floats x) {
  x = x > 89.0f ? broadcast(89.0f) : x;
  x = x < -104.5f ? broadcast(-104.5f) : x;
  // x = n ln 2 + r with n by rounding: adding 1.5 * 2^23 leaves the integer in the low bits.
  const Floats shifted = x * 1.44269504f + 12582912.0f;
  const Floats n = shifted - 12582912.0f;
  const Ints exponent = reinterpret_cast<Ints>(shifted) - 0x4b400000;
  const Floats r = (x - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
  Floats p = r * 0.001381308897400213f + 0.008369423824765406f;
  p = p * r + 0.04166845795801308f;
  p = p * r + 0.16666514736663038f;
  p = p * r + 0.4999999304485035f;
  p = p * (r * r) + r + 1.0f;
  // Two factors, because 2^n alone may be infinite or subnormal.
  const Ints half = exponent >> 1;
  return p * power_of_two(half) * power_of_two(exponent - half);
}

// erf(x): x * P(x^2) near zero, 1 - exp(|x| * Q(|x|)) beyond.
inline Floats error_function(Floats x) {
  const Floats t = x < 0.0f ? -x : x;
  const Floats z = x * x;
  Floats p = z * 8.327421553282343e-05f - 0.0008133198338586933f;
  p = p * z + 0.005200259039884376f;
  p = p * z - 0.026859119279893602f;
  p = p * z + 0.11283691213363761f;
  p = p * z - 0.37612633520344163f;
  p = p * z + 0.12837916662417978f;
  const Floats small = p * x + x;
  Floats u = t > 4.0f ? broadcast(4.0f) : t;
  Floats q = u * -4.937039890519202e-06f + 4.556711438528872e-05f;
  q = q * u + 4.9656924268166045e-05f;
  q = q * u - 0.0029303465922391877f;
  q = q * u + 0.022674435529570495f;
  q = q * u - 0.10526297283537686f;
  q = q * u - 0.635625136941827f;
  q = q * u - 0.1285517757728285f;
  const Floats tail = 1.0f - exponential(q * u - u);
  const Floats large = x < 0.0f ? -tail : tail;
  return t < 0.93f ? small : large;
}

}  // namespace
}  // namespace dmuon::DMUON_SIMD
