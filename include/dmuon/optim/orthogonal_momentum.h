// The momentum of a matrix, orthogonalised by Newton-Schulz: what Muon and Sign-Muon share.
//
//   m = momentum * m + (1 - momentum) * g  (lerp)   or   m = momentum * m + g  (sum)
//   u = m, or with nesterov (1 - momentum) * g + momentum * m (lerp), g + momentum * m (sum)
//   the result is orthogonalize(u)
#pragma once

#include <cstdint>
#include <string_view>

#include "dmuon/newton_schulz/newton_schulz.h"

namespace dmuon {

enum class MomentumForm : uint8_t { lerp, sum };
std::string_view name_of(MomentumForm form);  // "lerp", "sum"
MomentumForm momentum_form_from_name(std::string_view name);

struct OrthogonalMomentumOptions {
  MomentumForm momentum_form = MomentumForm::lerp;
  bool nesterov = true;
  double momentum = 0.95;
  double momentum_start = 0.85;       // momentum of the first step when it warms up
  int64_t momentum_warmup_steps = 0;  // steps from momentum_start, linearly, to momentum; 0: constant
  NewtonSchulzSpecification newton_schulz;
  // Muon Split (studied in arXiv:2605.08933): items [heads, rows, columns] are as many matrices, each with its own norm, iteration and
  // scale.
  bool per_head = false;
  int64_t workspace_bytes = int64_t{64} << 20;  // soft bound on the scratch of one batch; changes no bits
  // Lets tune() choose between the direct and the Gram form by measurement, which changes bits: the choices become part of
  // newton_schulz.measured_forms, hence of the rule's description(), and the same ones have to be adopted after a resume.
  bool tune_numerics = false;
};

// Momentum of update `step` (the first is 1): linear from momentum_start to momentum over momentum_warmup_steps.
double muon_momentum(const OrthogonalMomentumOptions& options, int64_t step);

}  // namespace dmuon
