// AdamW (Loshchilov & Hutter, 2019) with decoupled weight decay; element-wise, so tensors may be cut anywhere.
// States: "first_moment", "second_moment". Bias corrections are computed in float64 on the host.
#pragma once

#include <memory>

#include "dmuon/optim/update_rule.h"

namespace dmuon {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;  // added to the root of the corrected second moment
  double weight_decay = 0.1;
};
// ConfigError for a beta outside [0, 1), a negative epsilon or a negative decay.
std::unique_ptr<UpdateRule> make_adamw(const AdamWOptions& options);

}  // namespace dmuon
