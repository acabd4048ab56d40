// Stochastic gradient descent with momentum: m = momentum * m + (1 - dampening) * g, where the first step takes m = g;
// u = nesterov ? g + momentum * m : m; p = p - learning_rate * (u + weight_decay * p). The decay is decoupled: it does not
// enter the momentum. Element-wise. State: "momentum".
#pragma once

#include <memory>

#include "dmuon/optim/update_rule.h"

namespace dmuon {

struct SgdOptions {
  double momentum = 0.9;
  double dampening = 0.0;
  bool nesterov = false;
  double weight_decay = 0.0;
};
// ConfigError for a momentum outside [0, 1), a dampening outside [0, 1] or a negative decay.
std::unique_ptr<UpdateRule> make_sgd(const SgdOptions& options);

}  // namespace dmuon
