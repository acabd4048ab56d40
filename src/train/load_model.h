// A trained model made ready for use: what dmuon_generate and dmuon_evaluate start from.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dmuon/backend/backend.h"
#include "dmuon/data/tokenizer.h"
#include "dmuon/nn/model.h"

namespace dmuon {

struct LoadedModel {
  std::string origin;  // the directory, for messages
  std::unique_ptr<Model> model;
  Json settings;              // the resolved "model" object
  TokenizerHandle tokenizer;  // null: none was found
};

// `path`: a directory of the Hugging Face tools (it has a config.json), or a step directory, a checkpoint directory or a run directory
// (its newest checkpoint). The tokenizer is the one that `tokenizer` names ("byte", or what read_tokenizer accepts), else the one in
// the directory or checkpoint. Parameters become float32 on `backend`, with a few MB of one of them at a time in host memory beside
// it; no optimizer state is read. CheckpointError for what is missing, damaged or misshaped, ConfigError for an architecture that no
// family has, DataError for a tokenizer with more ids than the model.
LoadedModel load_model(Backend& backend, const std::string& path, const std::string& tokenizer, const std::vector<ModelFamily>& families);

// The tokenizer of a loaded model; CheckpointError saying how to give one if there is none.
const Tokenizer& require_tokenizer(const LoadedModel& loaded);

}  // namespace dmuon
