// Coefficient sets (a, b, c) of the Newton-Schulz step x <- a x + b x^3 + c x^5, with the iterations before which the
// Gram form recomputes X X^T. Sources and the study behind the restarts: src/newton_schulz/coefficients.cpp.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace dmuon {

struct CoefficientSet {
  std::string name;                         // "keller5", "polar_express_105" ...
  std::vector<std::array<double, 3>> rows;  // one per iteration; after the last row it repeats
  int iterations = 0;                       // when the caller asks for none in particular
  std::vector<int> gram_restarts;           // for float32, per set: never a free default
  bool cubic = false;                       // every c is zero
};

// ConfigError naming the nearest set.
const CoefficientSet& coefficient_set(std::string_view name);
std::vector<std::string> coefficient_set_names();

// The singular value that comes out for singular value `x` of the normalised input: the composition of the first
// `iterations` steps in float64 (0: the set's).
double newton_schulz_scalar_map(const CoefficientSet& set, double x, int iterations = 0);

}  // namespace dmuon
