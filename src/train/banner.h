// What a run says before it starts.
#pragma once

#include <string>

#include "dmuon/comm/communicator.h"
#include "dmuon/nn/model.h"
#include "train/run.h"

namespace dmuon {

// FLOP/s of a 1024 x 1024 x 1024 product on this backend: best of a few, after warm-up.
double measure_gemm_flops(Backend& backend);
std::string banner(const Configuration& configuration, const std::string& world, const Backend& backend, int threads, double gemm_flops,
                   const Model& model, const TokenData& data, const RunRules& rules, const RunGrid& grid);

}  // namespace dmuon
