#include "benchmarks/mpi/collectives.h"

#include <mpi.h>

#include <numeric>
#include <vector>

namespace dmuon::bench::mpi {

void barrier() { MPI_Barrier(MPI_COMM_WORLD); }

void broadcast(float* data, int64_t elements) { MPI_Bcast(data, static_cast<int>(elements), MPI_FLOAT, 0, MPI_COMM_WORLD); }

void all_reduce(float* data, int64_t elements) {
  MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(elements), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

void all_gather(float* data, std::span<const int> counts) {
  std::vector<int> offsets(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), 0);
  MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_FLOAT, data, counts.data(), offsets.data(), MPI_FLOAT, MPI_COMM_WORLD);
}

void reduce_scatter(float* data, std::span<const int> counts) {
  MPI_Reduce_scatter(MPI_IN_PLACE, data, counts.data(), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

double maximum(double mine) {
  double result = 0;
  MPI_Allreduce(&mine, &result, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return result;
}

}  // namespace dmuon::bench::mpi
