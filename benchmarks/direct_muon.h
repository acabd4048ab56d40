// Muon as a trainer without this project's kernels would run it: momentum, then the direct Newton-Schulz form on full
// matrix products of the library, one matrix after another. What the optimizer benchmarks compare with.
#pragma once

#include <memory>

#include "dmuon/optim/muon.h"

namespace dmuon::bench {

std::unique_ptr<UpdateRule> make_direct_muon(const MuonOptions& options);

}  // namespace dmuon::bench
