// Sign-Muon (Mishra, Trivedi, Kumar, arXiv:2605.16311): the message is the orthogonalised momentum of the worker's own
// gradient (orthogonal_momentum.h), so that each worker runs Newton-Schulz on each matrix, and only signs travel.
//
// With post_polar every replica orthogonalises the vote S itself and steps along the nearly orthogonal result,
//   p = p * (1 - learning_rate * weight_decay) - learning_rate * sqrt(max(1, fan_out / fan_in)) * orthogonalize(S),
// whose operator norm is about 1: the learning rate is then one of Muon, and rate_shape has to be none.
//
// Works on whole matrices: 2-D, 4-D taken as [out, in * k * k], or with per_head [heads, rows, columns] (each head's message and, with
// post_polar, vote is orthogonalised by itself); any other rank is a ShapeError naming the parameter.
// State: "momentum", local to each replica.
#pragma once

#include <memory>

#include "dmuon/optim/orthogonal_momentum.h"
#include "dmuon/optim/update_rule.h"
#include "dmuon/optim/vote_options.h"

namespace dmuon {

// Unlike Muon's, the norm is not bounded from below, so that a gradient of any scale gives its signs.
struct SignMuonOptions : OrthogonalMomentumOptions, VoteOptions {
  SignMuonOptions() {
    nesterov = false;
    momentum = 0.9;
    newton_schulz.epsilon = 0.0;
  }
  bool post_polar = false;
};
// ConfigError naming the field that is out of range.
std::unique_ptr<UpdateRule> make_sign_muon(const SignMuonOptions& options);

}  // namespace dmuon
