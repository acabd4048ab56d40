// Every rule with a vote, and gradients for its workers: for what must hold for all of them.
#pragma once

#include <cmath>

#include "dmuon/optim/lion.h"
#include "dmuon/optim/sign_adam.h"
#include "dmuon/optim/sign_muon.h"
#include "dmuon/optim/signum.h"
#include "optim/vote_support.h"

namespace dmuon::test {

struct Named {
  const char* name;
  MakeRule make;
};

// Every rule, with `change` applied to its common options.
inline std::vector<Named> all_rules(const std::function<void(VoteOptions&)>& change = {}) {
  const auto with = [&](auto options) {
    if (change) change(options);
    return options;
  };
  SignMuonOptions polar;
  polar.post_polar = true;
  SignMuonOptions spectral;
  spectral.newton_schulz.normalization = Normalization::spectral;
  SignumOptions sign_sgd;
  sign_sgd.momentum = 0.0;
  return {{"sign_muon", [options = with(SignMuonOptions())] { return make_sign_muon(options); }},
          {"sign_muon, spectral", [options = with(spectral)] { return make_sign_muon(options); }},
          {"sign_muon, post_polar", [options = with(polar)] { return make_sign_muon(options); }},
          {"signum", [options = with(SignumOptions())] { return make_signum(options); }},
          {"signSGD", [options = with(sign_sgd)] { return make_signum(options); }},
          {"sign_adam", [options = with(SignAdamOptions())] { return make_sign_adam(options); }},
          {"lion", [options = with(LionOptions())] { return make_lion(options); }}};
}

inline Values floats(Values values) {
  for (double& each : values) each = static_cast<float>(each);
  return values;
}

inline Values scaled(Values values, double factor) {
  for (double& each : values) each = static_cast<float>(each * factor);
  return values;
}

// `workers` gradients of one tensor.
inline std::vector<std::vector<Values>> random_gradients(int workers, int64_t elements, uint64_t seed, double factor = 1.0) {
  std::vector<std::vector<Values>> all;
  for (int worker = 0; worker < workers; ++worker)
    all.push_back({scaled(floats(normal_values(seed * 100 + static_cast<uint64_t>(worker), elements)), factor)});
  return all;
}

inline std::vector<bool> signs_of(const Values& values) {
  std::vector<bool> signs;
  for (const double each : values) signs.push_back(each > 0);
  return signs;
}

}  // namespace dmuon::test
