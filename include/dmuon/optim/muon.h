// Muon (Jordan et al., 2024): the momentum of a hidden matrix, orthogonalised by Newton-Schulz, scaled by its shape.
//
//   m = momentum * m + (1 - momentum) * g  (lerp)   or   m = momentum * m + g  (sum)
//   u = m, or with nesterov (1 - momentum) * g + momentum * m (lerp), g + momentum * m (sum)
//   p = p * (1 - learning_rate * weight_decay) - learning_rate * scale * orthogonalize(u)
//
// Decay uses the base learning rate, not the one scaled by the shape. State: "momentum". Works on whole tensors: 2-D,
// 4-D taken as [out, in * k * k], or with per_head [heads, rows, columns]; any other rank is a ShapeError naming the parameter. Items of
// equal shape go through the engine in batches bounded by `workspace_bytes`; results never depend on the grouping.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/optim/orthogonal_momentum.h"
#include "dmuon/optim/update_rule.h"

namespace dmuon {

// Factor on the orthogonalised update of a matrix of r rows (out) and c columns (in).
enum class ScaleMode : uint8_t {
  original,        // sqrt(max(1, r / c))
  match_rms,       // 0.2 sqrt(max(r, c)): an update with about the RMS of AdamW's (Moonlight)
  spectral,        // sqrt(max(r, c))
  spectral_ratio,  // sqrt(r / c)
  none             // 1
};
std::string_view name_of(ScaleMode mode);  // "original", "match_rms", ...
ScaleMode scale_mode_from_name(std::string_view name);
double muon_scale(ScaleMode mode, int64_t rows, int64_t columns);

struct MuonOptions : OrthogonalMomentumOptions {
  ScaleMode scale = ScaleMode::original;
  double scale_factor = 1.0;  // further factor on the update
  double weight_decay = 0.0;
};

// The published implementations, every field explicit: keller, torch, moonlight, dion, emerging, dmuon; and custom, the
// canonical form whose update does not depend on the scale of the gradient. ConfigError with the nearest name.
MuonOptions muon_options(std::string_view preset);
std::vector<std::string> muon_options_names();

// ConfigError naming the field that is out of range.
std::unique_ptr<UpdateRule> make_muon(const MuonOptions& options);

}  // namespace dmuon
