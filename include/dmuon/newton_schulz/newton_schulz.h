// Orthogonalisation of matrices by Newton-Schulz iteration: X <- a X + b (X X^T) X + c (X X^T)^2 X for the rows (a, b, c)
// of a coefficient set, on X / ||X||_F (Jordan et al., 2024; Gram form: Dao-AILab gram-newton-schulz, 2026). The singular
// values of the result are newton_schulz_scalar_map of those of X / ||X||_F: near 1, not 1.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/backend/backend.h"
#include "dmuon/core/json.h"
#include "dmuon/newton_schulz/coefficients.h"

namespace dmuon {

enum class IterationForm : uint8_t {
  automatic,  // the fixed table of (shape, set) in src/newton_schulz/schedule.cpp: direct for nearly square, Gram for long
  direct,     // on X
  gram        // on X X^T, multiplied to X once per segment between restarts
};
std::string_view name_of(IterationForm form);  // "auto", "direct", "gram"
IterationForm iteration_form_from_name(std::string_view name);

enum class EpsilonMode : uint8_t {
  add,    // X / (norm + epsilon)
  clamp,  // X / max(norm, epsilon)
  scaled  // X / (norm * safety + epsilon)
};
std::string_view name_of(EpsilonMode mode);  // "add", "clamp", "scaled"
EpsilonMode epsilon_mode_from_name(std::string_view name);

struct NewtonSchulzSpecification {
  std::string coefficients = "keller5";
  int iterations = 0;  // 0: the set's; more than its rows repeats the last row
  IterationForm form = IterationForm::automatic;
  std::vector<int> restarts;      // of the Gram form, ascending, each in [1, iterations); empty: the set's table
  bool disable_restarts = false;  // Gram form in one segment; a reason to watch the guard
  EpsilonMode epsilon_mode = EpsilonMode::clamp;
  double epsilon = 1e-15;
  double safety = 1.0;  // of EpsilonMode::scaled

  // Every field that changes the result, with the restarts written out; read by people and compared on resume.
  Json description() const;
};
// Throws ConfigError naming the field: unknown set, iterations outside [0, 99], restarts out of order or range,
// epsilon or safety that is negative or not finite.
void check(const NewtonSchulzSpecification& specification);

// FLOPs for one rows x columns matrix under the form the specification resolves to: 2 per multiply-add, symmetric
// products at half.
double newton_schulz_flops(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns);
// The form that `automatic` means for this shape and set.
IterationForm newton_schulz_form(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns);
// Bytes of workspace that orthogonalize() needs for each matrix of a batch.
int64_t newton_schulz_workspace(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, DType dtype);

// Orthogonalises matrices of one shape in place; float32, on the reference backend float64 too. `square_sums[i]`
// (float64, chunk sums of squares of matrix i, added here in order) saves the pass that computes the norm; empty:
// computed here. Tall matrices are handled by transposed operands, never by copies. A zero matrix stays zero. Results are
// bit-equal for every number of threads and every batch composition.
//
// The guard reruns the direct form for each matrix whose Gram result is not finite or has ||O||_F^2 > 1.5 min(m, n).
// Returned: how many matrices failed the guard, a direct result that is not finite included (it stays as it is: input
// that was not finite is never silently repaired). Blocks on the stream: norms and guard are read by the host.
// ShapeError for unequal shapes, a rank other than 2, or another dtype.
class NewtonSchulzEngine {
 public:
  explicit NewtonSchulzEngine(Backend& backend) : backend_(backend) {}
  int64_t orthogonalize(Stream& stream, const NewtonSchulzSpecification& specification, std::span<const Tensor> matrices,
                        std::span<const Tensor> square_sums = {});

 private:
  Backend& backend_;
};

}  // namespace dmuon
