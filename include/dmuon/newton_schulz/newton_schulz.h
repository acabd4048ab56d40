// Orthogonalisation of matrices by Newton-Schulz iteration: X <- a X + b (X X^T) X + c (X X^T)^2 X for the rows (a, b, c)
// of a coefficient set, on X / ||X||_F (Jordan et al., 2024; Gram form: Dao-AILab gram-newton-schulz, 2026), or on X over its
// largest singular value. The singular values of the result are newton_schulz_scalar_map of those of the normalised X: near
// 1, not 1.
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

// The norm that X is divided by.
enum class Normalization : uint8_t {
  frobenius,  // ||X||_F
  spectral    // 1.01 times the largest singular value, by 20 rounds of power iteration from a fixed start: in a few
              // iterations gets further, because singular values start near 1, not near 1/sqrt(rank)
};
std::string_view name_of(Normalization normalization);  // "frobenius", "spectral"
Normalization normalization_from_name(std::string_view name);

// A form that was measured to be the faster one for matrices of a shape.
struct MeasuredForm {
  int64_t rows = 0, columns = 0;
  IterationForm form = IterationForm::direct;
};

struct NewtonSchulzSpecification {
  std::string coefficients = "keller5";
  int iterations = 0;  // 0: the set's; more than its rows repeats the last row
  IterationForm form = IterationForm::automatic;
  std::vector<int> restarts;      // of the Gram form, ascending, each in [1, iterations); empty: the set's table
  bool disable_restarts = false;  // Gram form in one segment; a reason to watch the guard
  EpsilonMode epsilon_mode = EpsilonMode::clamp;
  double epsilon = 1e-15;
  double safety = 1.0;  // of EpsilonMode::scaled
  Normalization normalization = Normalization::frobenius;
  // Of the products: float32 (on the reference backend float64 for matrices of float64), or float16 with float32 sums on a device
  // that has DeviceUpdates; the latter takes the Frobenius norm only.
  DType dtype = DType::float32;
  // What `automatic` means for these shapes, instead of the fixed table. Changes bits, so it is part of description() and
  // has to be the same on all ranks and after a resume.
  std::vector<MeasuredForm> measured_forms;

  // Every field that changes the result, with the restarts written out; read by people and compared on resume.
  Json description() const;
};
// Throws ConfigError naming the field: unknown set, iterations outside [0, 99], restarts out of order or range,
// epsilon or safety that is negative or not finite, dtype other than float32 and float16, float16 with the spectral norm.
void check(const NewtonSchulzSpecification& specification);

// {"768x3072": "gram", ...} and back; ConfigError for anything else.
Json to_json(std::span<const MeasuredForm> forms);
std::vector<MeasuredForm> measured_forms_from(const Json& json);

// FLOPs for one rows x columns matrix under the form the specification resolves to: 2 per multiply-add, symmetric
// products at half.
double newton_schulz_flops(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns);
// The form that `automatic` means for this shape and set.
IterationForm newton_schulz_form(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns);
// Bytes of workspace that orthogonalize() needs for `count` matrices of this shape in one call, its result included.
int64_t newton_schulz_workspace(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, DType dtype,
                                int64_t count = 1, int queues = 1);

// How many matrices of one shape share a call and how the threads share them. Changes time and memory, never bits.
struct NewtonSchulzPlacement {
  int64_t batch = 1;
  int queues = 1;  // as in ProductSequence
};
// Bytes of the matrices of a call and of what it allocates.
int64_t newton_schulz_bytes(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, DType dtype,
                            const NewtonSchulzPlacement& placement);
// The fixed choice for `count` matrices of a shape; `workspace_bytes` bounds the matrices of a call and what it allocates
// (one matrix goes through whatever the bound).
NewtonSchulzPlacement newton_schulz_placement(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, DType dtype,
                                              int64_t count, int threads, int64_t workspace_bytes);

struct NewtonSchulzResult {
  std::vector<Tensor> matrices;  // the orthogonalised ones: the given tensors or others of the same shape
  int64_t guard_events = 0;      // how many failed the guard
};

// Orthogonalises matrices of one shape; float32, on the reference backend float64 too. The given tensors are scratch: what
// they hold afterwards is undefined, unless they come back as results. `square_sums` (float64 [matrices, chunks], chunk sums
// of squares of each matrix, added here in order) saves the pass that computes the norms. Tall matrices are handled by
// transposed operands, never by copies. A zero matrix stays zero. Results are bit-equal for every number of threads and
// queues and for every batch composition.
//
// The guard reruns the direct form for each matrix whose Gram result is not finite or has ||O||_F^2 > 1.5 min(m, n). A
// direct result that is not finite counts as well and stays as it is: input that was not finite is never silently
// repaired. The host reads two small tensors per call, the norms and the guard's, and waits for the stream there; the spectral norm
// takes five more.
//
// In float16 (device.h) norms and products stay on the device, and the host reads the guard's verdicts only; the results are
// float32 numbers of float16's precision.
// ShapeError for unequal shapes, a rank other than 2, or another dtype; DeviceError for float16 on a backend that has none of it.
class NewtonSchulzEngine {
 public:
  // `queues` as in ProductSequence: how the threads share a batch.
  explicit NewtonSchulzEngine(Backend& backend, int queues = 1) : backend_(backend), queues_(queues) {}
  NewtonSchulzResult orthogonalize(Stream& stream, const NewtonSchulzSpecification& specification, std::span<const Tensor> matrices,
                                   const Tensor& square_sums = {});

 private:
  Backend& backend_;
  int queues_;
};

}  // namespace dmuon
