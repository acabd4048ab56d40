// SignAdam: Adam whose gradient is the majority vote on the signs of the workers' raw gradients. (The sign of Adam's own
// direction would be Signum at the same beta1, because its denominator is positive.) The moments see the agreed +1, -1 or 0
// and are the same everywhere, so they are global state: "first_moment", "second_moment". Element-wise. A row that falls
// silent (0 from then on) is still moved by its first moment, while that fades, as under Adam.
//
//   p = p * (1 - learning_rate * weight_decay) - learning_rate * factor * (m / correction1) / (sqrt(v / correction2) + epsilon)
#pragma once

#include <memory>

#include "dmuon/optim/update_rule.h"
#include "dmuon/optim/vote_options.h"

namespace dmuon {

struct SignAdamOptions : VoteOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;  // added to the root of the corrected second moment
};
// ConfigError for a beta outside [0, 1), a negative epsilon or a negative decay.
std::unique_ptr<UpdateRule> make_sign_adam(const SignAdamOptions& options);

}  // namespace dmuon
