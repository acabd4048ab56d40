// Entry points of the executables. Models come in through an explicit table; nothing registers itself.
#pragma once

#include <vector>

#include "dmuon/nn/model.h"

namespace dmuon {

// dmuon_train: returns the process's exit code (core/error.h). `argv` as given to main.
int train(int argc, char** argv, const std::vector<ModelFamily>& families);
// dmuon_generate: text from a trained model.
int generate(int argc, char** argv, const std::vector<ModelFamily>& families);
// dmuon_evaluate: loss and multiple-choice accuracy of a trained model.
int evaluate(int argc, char** argv, const std::vector<ModelFamily>& families);

}  // namespace dmuon
