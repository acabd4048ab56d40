// What a rule with Newton-Schulz has measured before the first step: how the matrices of each shape share calls and threads, and, where the
// options ask for it, the form of the iteration; on a device also the forms of symmetric products.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dmuon/newton_schulz/tuner.h"
#include "dmuon/optim/orthogonal_momentum.h"
#include "dmuon/optim/update_rule.h"

namespace dmuon {

// A device's memory is larger than a processor's caches, and it fills up with many matrices at once: by how much its batches may
// be larger than workspace_bytes says.
inline constexpr int64_t device_workspace_factor = 8;

// [out, in] of a 2-D or 4-D weight, once; with per_head also `heads` times [rows, columns] of [heads, rows, columns]. ShapeError naming
// rule and parameter otherwise.
ShapeCount muon_matrices(std::string_view rule, std::string_view parameter, const Shape& shape, bool per_head);

struct MuonTuning {
  struct Placed {
    Shape shape;  // two-dimensional
    NewtonSchulzPlacement placement;
  };
  std::vector<Placed> placements;
  std::vector<MeasuredForm> forms;
  std::vector<SymmetricChoice> symmetric;  // on a device

  // The measured placement for `count` matrices of a shape, or null.
  const NewtonSchulzPlacement* placement(const Shape& shape) const;
  Json to_json() const;
  static MuonTuning from_json(const Json& json);  // ConfigError
};

// Forms that `options` already hold are not measured again. `adopted`: what another rank has chosen before, or null; of its choices
// those that change bits are kept, and none is added.
MuonTuning tune_muon(Backend& backend, std::string_view rule, const OrthogonalMomentumOptions& options, std::span<const ShapeCount> shapes,
                     MeasurementCache* cache, const MuonTuning* adopted = nullptr);
Json symmetric_json(std::span<const SymmetricChoice> choices);
// Tells a device the chosen forms of symmetric products.
void use_symmetric_choices(Backend& backend, std::span<const SymmetricChoice> choices);

}  // namespace dmuon
