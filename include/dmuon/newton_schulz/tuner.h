// Measures how to run the Newton-Schulz engine fastest on this backend, shape by shape, on random matrices. Nothing it
// chooses by itself changes bits; the form does, and is only measured when asked for.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dmuon/backend/device_updates.h"
#include "dmuon/core/measurement_cache.h"
#include "dmuon/newton_schulz/newton_schulz.h"

namespace dmuon {

// A form of the symmetric products of a shape on a device (DeviceUpdates::symmetric_forms).
struct SymmetricChoice {
  SymmetricShape shape;
  std::string form;
  bool changes_bits = false;  // one of the library, for any number of matrices
};

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

  // On a device with DeviceUpdates: chooses the form of every symmetric product that orthogonalising `count` matrices of the shape
  // takes, tells the device, and returns what it chose. Each candidate is first compared with the full product in float32; one that is
  // wrong, or that fails, is left out with a warning. `changing_bits` admits the library's forms, where nothing in `given` already
  // decides. Empty elsewhere, and in a shape-only pass.
  std::vector<SymmetricChoice> choose_symmetric_forms(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns,
                                                      int64_t count, bool changing_bits = false,
                                                      std::span<const SymmetricChoice> given = {});
  // There: into how large batches, `most` at the most, `count` matrices are divided. Changes no bits. `most` elsewhere.
  int64_t device_batch(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, int64_t count, int64_t most,
                       std::span<const SymmetricChoice> given = {});

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
