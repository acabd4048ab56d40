#include "train/huggingface.h"

#include <algorithm>
#include <memory>
#include <optional>

#include "dmuon/core/error.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "dmuon/io/checkpoint.h"
#include "dmuon/io/checkpoint_reader.h"
#include "dmuon/io/huggingface.h"
#include "train/agreement.h"

namespace dmuon {

bool has_tokenizer(const Path& directory) {
  const auto holds = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::is_regular_file(directory / name, ignored);
  };
  return holds("tokenizer.json") || (holds("vocab.json") && holds("merges.txt")) || (holds("encoder.json") && holds("vocab.bpe"));
}

namespace {

// The settings of the run that `resume` goes on with, if it started from the directory `from`.
std::optional<ImportedModel> saved_settings(const std::string& from, const std::string& output, const std::string& resume) {
  if (resume == "never") return std::nullopt;
  const bool newest = resume == "auto" || resume == "must";
  const std::optional<Path> found = newest ? find_checkpoint(Path(output) / "checkpoints", CheckpointCheck::sizes)
                                           : std::optional<Path>(resolve_checkpoint(resume, CheckpointCheck::sizes));
  if (!found) return std::nullopt;
  const CheckpointReader reader(*found, CheckpointCheck::sizes);
  const Json saved = reader.configuration();
  Json settings = saved.at("model");
  const Json* origin = settings.find("from");
  if (origin == nullptr || !(*origin == Json(from))) return std::nullopt;
  std::erase_if(settings.as_object(), [](const auto& member) { return member.first == "from"; });
  return ImportedModel{settings, false, saved.at("data").at("tokenizer").as_string()};
}

}  // namespace

ModelImport huggingface_import(const std::vector<ModelFamily>& families, const std::string& resume) {
  return [families, resume](const std::string& from, const std::string& output) {
    try {
      const HuggingFaceModel model = read_huggingface_config(from, families);
      return ImportedModel{model.settings, model.family.huggingface.shorter_context, has_tokenizer(from) ? from : std::string()};
    } catch (const StorageError&) {
      if (const std::optional<ImportedModel> saved = saved_settings(from, output, resume)) return *saved;
      throw;
    }
  };
}

ShardedModel::InitialValues huggingface_values(Communicator& world, const Path& directory, const ModelFamily& family, const Json& settings,
                                               const Inventory& inventory) {
  std::shared_ptr<HuggingFaceReader> reader;
  agreed(world, [&] {
    if (!family.huggingface.defined())
      throw ConfigError(text("model.family \"", family.name, "\" has no form in Hugging Face directories (model.from)"));
    reader = std::make_shared<HuggingFaceReader>(directory, family.huggingface.layout(settings), inventory);
    reader->check_tied_copy(world.rank(), world.size());
  });
  if (world.rank() == 0) {
    for (const std::string& note : reader->notes()) log_information(text("note: ", note));
    log_information(text("weights from ", directory.string()));
  }
  return [reader](const ParameterDeclaration& parameter, int64_t first, int64_t count, float* out) {
    reader->read(parameter.name, first, count, out);
  };
}

}  // namespace dmuon
