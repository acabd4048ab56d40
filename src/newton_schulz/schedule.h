// What an orthogonalisation will do, resolved from specification and shape: a pure function, so that ranks, grids and
// batches agree. Everything that changes bits is decided here.
#pragma once

#include <array>
#include <vector>

#include "dmuon/newton_schulz/newton_schulz.h"

namespace dmuon {

constexpr double guard_factor = 1.5;             // ||O||_F^2 <= 1.5 min(m, n)
constexpr int power_iteration_rounds = 20;       // of Normalization::spectral
constexpr double power_iteration_safety = 1.01;  // on its result, which is a bound from below

struct NewtonSchulzSchedule {
  std::vector<std::array<double, 3>> rows;  // one per iteration
  std::vector<int> segments;                // Gram form: first iteration of each segment, starting with 0
  bool gram = false;
  bool tall = false;       // rows > columns: the Gram matrix is X^T X and multiplies from the right
  int64_t short_side = 0;  // of the matrix, the size of the Gram matrix
  int64_t long_side = 0;

  int64_t rows_of_matrix() const { return tall ? long_side : short_side; }
  int64_t columns_of_matrix() const { return tall ? short_side : long_side; }
  int iterations() const { return static_cast<int>(rows.size()); }
  int segment_end(size_t segment) const { return segment + 1 < segments.size() ? segments[segment + 1] : iterations(); }
};

NewtonSchulzSchedule resolve(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns);
// The same matrix in the direct form; what the guard reruns.
NewtonSchulzSchedule direct_form(NewtonSchulzSchedule schedule);
double flops(const NewtonSchulzSchedule& schedule);

}  // namespace dmuon
