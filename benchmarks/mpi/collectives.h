// The MPI library's own collectives over all ranks, on float32, as what ours are compared with. One file with MPI, one
// without, whose functions throw ConfigError.
#pragma once

#include <cstdint>
#include <span>

namespace dmuon::bench::mpi {

void barrier();
void broadcast(float* data, int64_t elements);  // from rank 0
void all_reduce(float* data, int64_t elements);
// Rank r owns counts[r] elements, one after another; in place.
void all_gather(float* data, std::span<const int> counts);
void reduce_scatter(float* data, std::span<const int> counts);
double maximum(double mine);

}  // namespace dmuon::bench::mpi
