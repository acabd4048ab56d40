// Orthogonalisation of matrices by Newton-Schulz iteration: X <- a X + b (X X^T) X + c (X X^T)^2 X for the rows (a, b, c)
// of a coefficient set, on X / ||X||_F. Constants and their sources: coefficients.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/backend/backend.h"
#include "dmuon/core/json.h"

namespace dmuon {

struct CoefficientSet {
  std::string_view name;                       // "keller5", "polar_express_105" ...
  std::vector<std::array<double, 3>> rows;     // one row per iteration
  std::vector<int> gram_restarts;              // iterations before which the Gram form recomputes R (per set, never a free default)
};
const CoefficientSet& coefficient_set(std::string_view name);  // ConfigError with the nearest name
std::vector<std::string> coefficient_set_names();

enum class IterationForm : uint8_t {
  automatic,  // the fixed table of (shape, set, precision): direct for nearly square, Gram for long matrices
  direct,     // on X
  gram        // on X X^T, multiplied to X once per segment between restarts
};
enum class EpsilonMode : uint8_t {
  add,    // X / (norm + epsilon)
  clamp,  // X / max(norm, epsilon)
  scaled  // X / (norm * safety + epsilon)
};

struct NewtonSchulzSpecification {
  std::string coefficients = "keller5";
  int iterations = 0;  // 0: the set's rows; more repeats the last row
  IterationForm form = IterationForm::automatic;
  std::vector<int> restarts;  // empty: the set's table
  EpsilonMode epsilon_mode = EpsilonMode::add;
  double epsilon = 1e-7;
  double safety = 1.0;  // of EpsilonMode::scaled

  Json description() const;
};

// FLOPs for one m x n matrix under the form the specification resolves to.
double newton_schulz_flops(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns);

// Orthogonalises matrices of one shape in place. `square_sums[i]` (float64, chunk sums of squares of matrix i, added in
// order) saves the engine the pass that computes the norm; empty: computed here. Tall matrices are handled by transposed
// operands, never by copies. Results are bit-equal for every number of threads and every batch composition.
// A guard reruns the direct form when a Gram result is not finite or ||O||_F^2 > 1.5 min(m, n); the count is returned.
class NewtonSchulzEngine {
 public:
  explicit NewtonSchulzEngine(Backend& backend) : backend_(backend) {}
  int64_t orthogonalize(Stream& stream, const NewtonSchulzSpecification& specification, std::span<const Tensor> matrices,
                        std::span<const Tensor> square_sums = {});

 private:
  Backend& backend_;
};

}  // namespace dmuon
