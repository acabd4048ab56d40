// Measures how to run the Newton-Schulz engine fastest on this backend, shape by shape, on random matrices. Nothing it
// chooses by itself changes bits; the form does, and is only measured when asked for.
#pragma once

#include <span>

#include "dmuon/core/measurement_cache.h"
#include "dmuon/newton_schulz/newton_schulz.h"

namespace dmuon {

class NewtonSchulzTuner {
 public:
  // `cache` may be null: everything is measured. A matrix whose orthogonalisation takes more than `patience_flops` is not
  // worth measuring: it fills the machine however it is run, and keeps the fixed choice.
  NewtonSchulzTuner(Backend& backend, MeasurementCache* cache, double patience_flops = 2e10)
      : backend_(backend), cache_(cache), patience_flops_(patience_flops) {}

  // Placement of `count` float32 matrices: the fastest of those within `most_bytes` (newton_schulz_bytes), or `fixed`.
  NewtonSchulzPlacement placement(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, int64_t count,
                                  const NewtonSchulzPlacement& fixed, int64_t most_bytes);
  // The faster of direct and Gram for one matrix; the fixed one within `least_gain`.
  IterationForm form(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns);

  // On a device with DeviceUpdates: chooses the tile and the depth of every symmetric product that orthogonalising `count`
  // matrices of the shape takes, and tells the device. Each form is first compared with the full product in float32; one that is
  // wrong is left out with a warning. Changes no bits. Nothing elsewhere, and in a shape-only pass.
  void choose_symmetric_forms(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, int64_t count);

  // Orthogonalisations, and forms of choose_symmetric_forms, tried so far; 0 when the cache knew everything.
  int64_t measurements() const { return measurements_; }

 private:
  double seconds(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, const NewtonSchulzPlacement& placement);

  Backend& backend_;
  MeasurementCache* cache_;
  double patience_flops_;
  int64_t measurements_ = 0;
};

}  // namespace dmuon
