// What a run must have in common with the checkpoint that it resumes from.
#pragma once

#include "dmuon/config/configuration.h"
#include "dmuon/core/json.h"
#include "dmuon/io/checkpoint_reader.h"

namespace dmuon {

// Names what a resumed run must not change and where it does: seed, model, rules. CheckpointError.
void require_same_run(const CheckpointReader& reader, const Configuration& configuration, const Json& model_settings, const Json& rules);

}  // namespace dmuon
