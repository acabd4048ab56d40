// Coefficient sets (a, b, c) of the Newton-Schulz step x <- a x + b x^3 + c x^5, with the iterations before which the
// Gram form recomputes X X^T. Sources: src/newton_schulz/coefficients.cpp; the study behind the restarts:
// docs/newton_schulz.md.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/dtype.h"

namespace dmuon {

struct CoefficientSet {
  std::string name;                         // "keller5", "polar_express_105" ...
  std::vector<std::array<double, 3>> rows;  // one per iteration; after the last row it repeats
  int iterations = 0;                       // when the caller asks for none in particular
  // Of the Gram form, per set and precision of its products: never a free default.
  std::vector<int> float32_restarts;
  std::vector<int> float16_restarts;
  std::vector<int> bfloat16_restarts;
  bool cubic = false;  // every c is zero

  const std::vector<int>& restarts(DType precision) const {
    if (precision == DType::float16) return float16_restarts;
    return precision == DType::bfloat16 ? bfloat16_restarts : float32_restarts;
  }
};

// ConfigError naming the nearest set.
const CoefficientSet& coefficient_set(std::string_view name);
std::vector<std::string> coefficient_set_names();

// The singular value that comes out for singular value `x` of the normalised input: the composition of the first
// `iterations` steps in float64 (0: the set's).
double newton_schulz_scalar_map(const CoefficientSet& set, double x, int iterations = 0);

}  // namespace dmuon
