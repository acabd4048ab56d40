// Signum, signSGD with momentum under a majority vote (Bernstein et al., arXiv:1802.04434, arXiv:1810.05291): the message is
// the momentum of the worker's own gradient, with nesterov looking one step ahead. Momentum 0 is signSGD, which keeps no
// state. Element-wise. State: "momentum", local to each replica.
#pragma once

#include <memory>

#include "dmuon/optim/orthogonal_momentum.h"
#include "dmuon/optim/update_rule.h"
#include "dmuon/optim/vote_options.h"

namespace dmuon {

struct SignumOptions : VoteOptions {
  MomentumForm momentum_form = MomentumForm::lerp;  // the two give the same signs
  bool nesterov = false;
  double momentum = 0.9;
};
// ConfigError for a momentum outside [0, 1) or a negative decay.
std::unique_ptr<UpdateRule> make_signum(const SignumOptions& options);

}  // namespace dmuon
