// Runs that start from a Hugging Face directory (model.from).
#pragma once

#include <vector>

#include "dmuon/comm/communicator.h"
#include "dmuon/config/configuration.h"
#include "dmuon/nn/model.h"
#include "dmuon/shard/sharded_model.h"

namespace dmuon {

// Whether the files of a byte-level BPE tokenizer lie there, under any of their names.
bool has_tokenizer(const Path& directory);

// What model.from determines, for load_configuration; errors as read_huggingface_config. Where the directory has no readable config.json
// and `resume` (as --resume) finds a checkpoint of a run that started from it, the checkpoint's own settings serve.
ModelImport huggingface_import(const std::vector<ModelFamily>& families, const std::string& resume = "never");

// The weights of the directory, read where they are asked for. Collective: the ranks share the check of what has to be compared, and
// the first prints what there is to say. Errors as HuggingFaceReader, on every rank.
ShardedModel::InitialValues huggingface_values(Communicator& world, const Path& directory, const ModelFamily& family, const Json& settings,
                                               const Inventory& inventory);

}  // namespace dmuon
