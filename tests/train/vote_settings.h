// Settings of small runs whose matrices are voted on.
#pragma once

#include <string>

#include "train/run_support.h"

namespace dmuon::testing {

inline const std::string votes = "--set optimizer.matrix.rule=sign_muon --set optimizer.matrix.learning_rate=0.002 ";

inline std::string transport(const std::string& name) { return "--set distribution.vote_transport=" + name + " "; }

}  // namespace dmuon::testing
