#include <algorithm>

#include "dmuon/newton_schulz/newton_schulz.h"

namespace dmuon {
namespace {

// Below this many FLOPs a matrix goes to one thread and the batch is dealt to all of them.
constexpr double small_flops = 2e9;

}  // namespace

NewtonSchulzPlacement newton_schulz_placement(const NewtonSchulzSpecification& specification, int64_t rows, int64_t columns, DType dtype,
                                              int64_t count, int threads, int64_t workspace_bytes) {
  NewtonSchulzPlacement placement;
  if (newton_schulz_flops(specification, rows, columns) < small_flops)
    placement.queues = static_cast<int>(std::min<int64_t>(count, std::max(1, threads)));
  const int64_t one = newton_schulz_workspace(specification, rows, columns, dtype, 1, 1);
  const int64_t two = newton_schulz_workspace(specification, rows, columns, dtype, 2, 1);
  const int64_t per_queue = 2 * one - two, per_matrix = two - one + rows * columns * size_of(dtype);
  const auto fits = [&](int queues) { return (workspace_bytes - queues * per_queue) / per_matrix; };
  if (fits(placement.queues) < placement.queues) placement.queues = 1;
  placement.batch = std::clamp<int64_t>(fits(placement.queues), 1, count);
  // Whole rounds of the queues, where there is more than one call.
  if (placement.batch < count && placement.batch > placement.queues) placement.batch -= placement.batch % placement.queues;
  return placement;
}

}  // namespace dmuon
