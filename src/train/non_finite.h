// What a run does about numbers that are not finite. All ranks come here together with equal arguments: the policy needs no
// further agreement.
#pragma once

#include <string>

#include "dmuon/config/configuration.h"
#include "dmuon/core/error.h"
#include "dmuon/shard/sharded_model.h"
#include "train/checkpointing.h"

namespace dmuon {

// A loss or a gradient, found before the update: what to say of a step that is skipped, or AgreedError (ExitCode::numerical) where
// training.non_finite or training.maximum_skips end the run. `state` counts this step and this skip.
std::string skip_or_end(const TrainingConfiguration& training, const TrainState& state, const GradientReport& report, double loss);

// A message of votes, found after momenta have taken it in: nothing to go on with, whatever the policy. AgreedError
// (ExitCode::numerical).
[[noreturn]] void end_by_message(const TrainingConfiguration& training, int64_t step, const NumericalError& error);

}  // namespace dmuon
