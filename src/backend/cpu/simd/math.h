// Vector exponential, accurate to less than 2 units in the last place, and the normal distribution to 1e-6 relative
// (measured over all magnitudes in tests/cpu). The polynomials are near-minimax fits made for these intervals; NaN stays NaN.
#pragma once

#include "backend/cpu/simd/vector.h"

namespace dmuon::DMUON_SIMD {
namespace {

// exp(x) for x in [-87.3, 88]; beyond, its value at the nearer end (1.2e-38, 1.7e38): everything that uses it divides by a sum
// or a one that is far larger, or multiplies what is far smaller.
inline Floats exponential(Floats x) {
  x = minimum(broadcast(88.0f), maximum(broadcast(-87.3f), x));
  // x = n ln 2 + r with n by rounding: adding 1.5 * 2^23 leaves n in the low bits, with the exponent's bias where it belongs.
  constexpr float shift = 12582912.0f + 127.0f;
  const Floats shifted = x * 1.44269504f + shift;
  const Floats n = shifted - shift;
  const Floats r = (x - n * 0.693145751953125f) - n * 1.42860682030941723e-6f;
  Floats p = r * 0.001381308897400213f + 0.008369423824765406f;
  p = p * r + 0.04166845795801308f;
  p = p * r + 0.16666514736663038f;
  p = p * r + 0.4999999304485035f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  return p * reinterpret_cast<Floats>(reinterpret_cast<Ints>(shifted) << 23);
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
