// Everything a run is made of, built in the order in which it can fail cheaply: configuration, world, device, data,
// model, rules, plan, sharded model.
#pragma once

#include <memory>
#include <string>

#include "dmuon/comm/communicator.h"
#include "dmuon/config/configuration.h"
#include "dmuon/data/dataset.h"
#include "dmuon/data/token_data.h"
#include "dmuon/nn/model.h"
#include "train/planning.h"
#include "train/rules.h"

namespace dmuon {

// The model of a configuration; vocabulary_size 0 is replaced by the tokenizer's.
struct ModelPlan {
  std::unique_ptr<Model> model;
  Json settings;  // the resolved "model" object
};
ModelPlan make_model(const Configuration& configuration, const TokenData& data, const std::vector<ModelFamily>& families);

// ConfigError for a family that is not in the table, with the nearest name.
const ModelFamily& find_family(const std::vector<ModelFamily>& families, const std::string& name);

TokenData open_data(const Configuration& configuration, TokenizerHandle saved);

// Sequences of the global batch, and how a rank walks its block in micro-batches.
struct StepShape {
  int64_t global_batch = 0;   // sequences
  int64_t micro_batches = 0;  // the same on every rank; some may be empty on some
  int64_t micro_batch_size = 0;
};
StepShape step_shape(const Configuration& configuration, int ranks);

// Compares the configuration of all ranks; CommunicationError names the first rank and key that differ. Collective.
void require_equal_configuration(Communicator& world, const Configuration& configuration);

}  // namespace dmuon
