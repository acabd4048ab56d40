#include "dmuon/optim/clipping.h"

#include <cmath>

namespace dmuon {

double clip_coefficient(double norm, double maximum) {
  if (maximum <= 0.0) return 1.0;
  const double coefficient = maximum / (norm + 1e-6);
  return coefficient < 1.0 || std::isnan(coefficient) ? coefficient : 1.0;
}

}  // namespace dmuon
