#include "train/evaluation.h"

#include <algorithm>

#include "dmuon/core/checked.h"
#include "train/batches.h"

namespace dmuon {

std::optional<double> evaluate(Backend& backend, Communicator& world, Model& model, const Dataset& validation, int64_t batch_size,
                               int64_t maximum_tokens, const std::function<void()>& skip_pass, const std::function<bool()>& stop) {
  int64_t windows = validation.samples_per_epoch();
  if (maximum_tokens > 0) windows = std::min(windows, std::max<int64_t>(1, maximum_tokens / validation.length()));
  const int64_t batches = divide_up(windows, batch_size);
  // One slot per batch, filled by one rank: the sum over ranks is exact.
  std::vector<double> sums(static_cast<size_t>(2 * batches), 0.0);
  ExecutionContext context{backend, backend.compute_stream()};
  for (int64_t turn = 0; turn < batches; turn += world.size()) {
    if (stop && stop()) return std::nullopt;
    const int64_t b = turn + world.rank();
    if (b >= batches) {
      if (skip_pass) skip_pass();
      continue;
    }
    const HostTokenBatch batch = validation.batch(b * batch_size, std::min(batch_size, windows - b * batch_size));
    sums[static_cast<size_t>(2 * b)] = evaluate_batch(model, context, batch);
    sums[static_cast<size_t>(2 * b + 1)] = static_cast<double>(batch.valid_targets);
  }
  sums = world.all_reduce(sums, ReduceOperation::sum);
  double loss = 0.0, targets = 0.0;
  for (size_t b = 0; b < sums.size(); b += 2) {
    loss += sums[b];
    targets += sums[b + 1];
  }
  return targets > 0.0 ? loss / targets : 0.0;
}

}  // namespace dmuon
