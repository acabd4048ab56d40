// The inventory of a configured model for planning tools: shapes from the model itself, roles from the run's routing.
#pragma once

#include "dmuon/config/configuration.h"
#include "dmuon/nn/model.h"
#include "dmuon/plan/model_inventory.h"
#include "dmuon/plan/simulation.h"

namespace dmuon {

// Allocates no tensor. A tensor counts as a matrix when its rule needs it whole; a matrix under an element-wise rule
// counts as a vector. Opens the data only when the configuration leaves the vocabulary to the tokenizer. Errors as those of a dry run.
ModelInventory planned_inventory(const Configuration& configuration, const std::vector<ModelFamily>& families);

// Planner, stage, windows and limits of the configuration's distribution; ranks and steps keep their defaults. `nodes` is the
// configuration's, 0 when it leaves them to the machine.
SimulationOptions planned_options(const Configuration& configuration);

}  // namespace dmuon
