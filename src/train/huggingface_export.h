// Checkpoints as Hugging Face directories, and back: what dmuon_checkpoint export and import do.
#pragma once

#include <vector>

#include "dmuon/core/dtype.h"
#include "dmuon/core/file.h"
#include "dmuon/nn/model.h"

namespace dmuon {

struct CheckpointExport {
  Path checkpoint;  // as resolve_checkpoint
  Path output;      // a directory that must not exist
  DType dtype = DType::float32;
  int64_t shard_bytes = 5'000'000'000;
};
// Writes config.json, generation_config.json, the weights and the tokenizer's files, if it has such. ConfigError for a model that
// transformers cannot express; CheckpointError for a checkpoint that is damaged or of another model.
void export_checkpoint(const CheckpointExport& request, const std::vector<ModelFamily>& families);

// Writes <output>/step-00000000 with the parameters, settings and tokenizer of a Hugging Face directory: a checkpoint without
// optimizer state, for use and export. Returns its path. Memory: 4 MiB. Errors as read_huggingface_config, HuggingFaceReader and
// CheckpointWriter.
Path import_checkpoint(const Path& directory, const Path& output, const std::vector<ModelFamily>& families);

}  // namespace dmuon
