// Validation loss over a fixed set of windows, equal for every number of ranks.
#pragma once

#include <functional>
#include <optional>

#include "dmuon/comm/communicator.h"
#include "dmuon/data/dataset.h"
#include "dmuon/nn/model.h"

namespace dmuon {

// The set is cut into batches of `batch_size` windows in order, whatever the ranks; batch b is computed by rank
// b modulo ranks, and the sums are added in the order of the batches. So neither the result's bits nor its shapes depend
// on the number of ranks, also when windows divide by nothing. `maximum_tokens` 0: the whole set. Collective:
// a rank that has no batch left while others have one calls `skip_pass` (empty: nobody waits for it) instead of a forward pass.
// `stop` is asked before every turn of one batch a rank, on all ranks, and must answer the same on all: true gives the evaluation up, and
// nothing is returned.
std::optional<double> evaluate(Backend& backend, Communicator& world, Model& model, const Dataset& validation, int64_t batch_size,
                               int64_t maximum_tokens, const std::function<void()>& skip_pass = {}, const std::function<bool()>& stop = {});

}  // namespace dmuon
