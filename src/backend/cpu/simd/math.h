// Vector exponential, accurate to less than 2 units in the last place, and the normal distribution to 1e-6 relative
// (measured over all magnitudes in tests/cpu). The polynomials are near-minimax fits made for these intervals; NaN stays NaN.
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

// The standard normal distribution function, relatively accurate in the lower tail too, and exp(-x^2 / 2), of which it is
// made: with t = |x| / sqrt(2), the tail is exp(-t^2) erfcx(t) / 2 and erfcx(t) = s P(s), s = 1 / (1 + 0.3 t).
struct Normal {
  Floats cumulative, kernel;
};
inline Normal normal_distribution(Floats x) {
  const Floats kernel = exponential(-0.5f * x * x);
  const Floats s = 1.0f / (1.0f + 0.212132034f * (x < 0.0f ? -x : x));
  Floats p = s * -0.12944053466115138f + 0.48512816464125486f;
  p = p * s - 0.5112926366981984f;
  p = p * s + 0.546471451570572f;
  p = p * s - 0.09368440202506169f;
  p = p * s + 0.21445900128395148f;
  p = p * s + 0.14847662844846207f;
  p = p * s + 0.17069273920172126f;
  p = p * s + 0.16918956876599858f;
  const Floats tail = 0.5f * kernel * (p * s);
  return {x < 0.0f ? tail : 1.0f - tail, kernel};
}

}  // namespace
}  // namespace dmuon::DMUON_SIMD
