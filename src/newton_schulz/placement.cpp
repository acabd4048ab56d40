#include <algorithm>

#include "dmuon/newton_schulz/newton_schulz.h"

namespace dmuon {
namespace {

// Matrices below this many FLOPs always go whole to one thread each; larger ones only when they fill the threads evenly.
constexpr double small_flops = 2e9;
// FLOPs of a call that hide its fixed costs: with one queue some 5 microseconds, and a longer batch would only push the
// matrices out of the cache between momentum, iteration and apply; with several also the meeting of the threads at its end.
constexpr double flops_of_one_queue = 2e7, flops_per_queue = 1e9;

}  // namespace

int64_t newton_schulz_bytes(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, DType dtype,
                            const NewtonSchulzPlacement& placement) {
  return newton_schulz_workspace(specification, rows, columns, dtype, placement.batch, placement.queues) +
         placement.batch * rows * columns * size_of(dtype);
}

NewtonSchulzPlacement newton_schulz_placement(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, DType dtype,
                                              int64_t count, int threads, int64_t workspace_bytes) {
  const double flops = newton_schulz_flops(specification, rows, columns);
  const int64_t one = newton_schulz_bytes(specification, rows, columns, dtype, {1, 1});
  const int64_t two = newton_schulz_bytes(specification, rows, columns, dtype, {2, 1});
  const int64_t per_matrix = two - one, per_queue = one - per_matrix;
  const auto fitting = [&](int64_t queues) { return (workspace_bytes - queues * per_queue) / per_matrix; };

  int64_t queues = std::min<int64_t>(count, std::max(1, threads));
  const bool even = count % std::max(1, threads) == 0;
  if ((flops >= small_flops && !even) || fitting(queues) < queues) queues = 1;
  const auto rounds = static_cast<int64_t>((queues == 1 ? flops_of_one_queue : flops_per_queue) / flops) + 1;
  int64_t batch = std::clamp<int64_t>(std::min(queues * rounds, fitting(queues)), 1, count);
  if (batch < count && batch > queues) batch -= batch % queues;  // whole rounds
  return {batch, static_cast<int>(queues)};
}

}  // namespace dmuon
