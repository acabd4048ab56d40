// Lion with majority vote (Chen et al., arXiv:2302.06675; Distributed Lion, arXiv:2404.00438): the message mixes the worker's
// gradient into its momentum with beta1, then the momentum takes it in with beta2:
//   message = beta1 * m + (1 - beta1) * g,   m = beta2 * m + (1 - beta2) * g
// Element-wise. State: "momentum", local to each replica.
#pragma once

#include <memory>

#include "dmuon/optim/update_rule.h"
#include "dmuon/optim/vote_options.h"

namespace dmuon {

struct LionOptions : VoteOptions {
  double beta1 = 0.9;
  double beta2 = 0.99;
};
// ConfigError for a beta outside [0, 1) or a negative decay.
std::unique_ptr<UpdateRule> make_lion(const LionOptions& options);

}  // namespace dmuon
