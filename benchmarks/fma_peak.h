// What the processor's multiply-add units can do: the limit that FLOP rates are compared with.
#pragma once

#include <string>

namespace dmuon::bench {

// GFLOP/s in float32 of `threads` threads that do nothing but independent fused multiply-adds in registers, with the
// vectors of `instruction_set` ("baseline", "avx2", "avx512": as in BackendInformation). CPU time for one thread, elapsed
// time for several; the best of several short runs.
double fma_peak_gflops(const std::string& instruction_set, int threads);

}  // namespace dmuon::bench
