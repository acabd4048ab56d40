#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/device_language.h"
#include "backend/cuda/missing.h"

namespace dmuon::cuda {

void Optimizer::adamw(Stream&, const AdamWPass&) { missing("optimizer_adamw"); }

void Optimizer::sgd(Stream&, const SgdPass&) { missing("optimizer_sgd"); }

void Optimizer::muon_momentum(Stream&, const MuonMomentum&) { missing("optimizer_muon_momentum"); }

void Optimizer::muon_apply(Stream&, const MuonApply&) { missing("optimizer_muon_apply"); }

void Optimizer::convert(Stream&, const Convert&) { missing("optimizer_convert"); }

void Optimizer::square_sums(Stream&, const SquareSums&) { missing("optimizer_square_sums"); }

void Optimizer::sum(Stream&, const Sum&) { missing("optimizer_sum"); }

void Optimizer::count_non_finite(Stream&, const CountNonFinite&) { missing("optimizer_count_non_finite"); }

}  // namespace dmuon::cuda
