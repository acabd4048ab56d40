#include "train/huggingface.h"

#include <memory>

#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
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

ModelImport huggingface_import(const std::vector<ModelFamily>& families) {
  return [families](const std::string& from) {
    const HuggingFaceModel model = read_huggingface_config(from, families);
    return ImportedModel{model.settings, model.family.huggingface.shorter_context, has_tokenizer(from) ? from : std::string()};
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
