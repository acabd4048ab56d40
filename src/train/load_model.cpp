#include "train/load_model.h"

#include <algorithm>
#include <filesystem>
#include <functional>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/io/checkpoint_reader.h"
#include "dmuon/io/huggingface.h"
#include "train/huggingface.h"
#include "train/run.h"

namespace dmuon {
namespace {

// Gives every parameter memory and its values: `read` writes elements [first, first + count) as float32. Piece by piece, so that
// loading takes little more memory than the model.
void fill_parameters(Backend& backend, const Inventory& inventory,
                     const std::function<void(const ParameterDeclaration& parameter, int64_t first, int64_t count, float* out)>& read) {
  constexpr int64_t piece = int64_t{1} << 20;
  std::vector<float> host;
  for (const ParameterDeclaration& parameter : inventory.parameters()) {
    Tensor value = backend.allocate(parameter.shape, DType::float32, MemoryCategory::parameters, parameter.name);
    for (int64_t first = 0; first < value.elements(); first += piece) {
      const int64_t count = std::min(piece, value.elements() - first);
      host.resize(std::max(host.size(), static_cast<size_t>(count)));
      read(parameter, first, count, host.data());
      backend.copy_from_host(backend.compute_stream(), host.data(), value.flat(first, count));
    }
    parameter.state->value = std::move(value);
  }
}

void read_parameters(Backend& backend, const Inventory& inventory, const CheckpointReader& reader) {
  std::vector<ExpectedTensor> expected;
  for (const ParameterDeclaration& parameter : inventory.parameters())
    expected.push_back({parameter.name, DType::float32, parameter.shape});
  reader.check_tensors(expected, true);
  fill_parameters(backend, inventory, [&](const ParameterDeclaration& parameter, int64_t first, int64_t count, float* out) {
    reader.read_tensor(parameter.name, first * 4, out, count * 4);
  });
}

LoadedModel load_checkpoint(Backend& backend, const std::string& path, TokenizerHandle tokenizer,
                            const std::vector<ModelFamily>& families) {
  const CheckpointReader reader(resolve_checkpoint(path));
  LoadedModel loaded;
  loaded.origin = reader.path().string();
  loaded.settings = parse_json(reader.text_of("model.json"), "model.json");
  loaded.tokenizer = std::move(tokenizer);
  if (!loaded.tokenizer && reader.has_text("tokenizer.json"))
    loaded.tokenizer = tokenizer_from_json(parse_json(reader.text_of("tokenizer.json"), "tokenizer.json"));
  loaded.model = find_family(families, loaded.settings.at("family").as_string()).make(loaded.settings);
  read_parameters(backend, loaded.model->inventory(), reader);
  return loaded;
}

bool is_huggingface(const Path& directory) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(directory / "config.json", ignored);
}

LoadedModel load_huggingface(Backend& backend, const Path& directory, TokenizerHandle tokenizer, const std::vector<ModelFamily>& families) {
  const HuggingFaceModel described = read_huggingface_config(directory, families);
  LoadedModel loaded;
  loaded.origin = directory.string();
  loaded.settings = described.settings;
  loaded.tokenizer = std::move(tokenizer);
  if (!loaded.tokenizer && has_tokenizer(directory)) loaded.tokenizer = read_tokenizer(directory.string());
  loaded.model = described.family.make(loaded.settings);
  const Inventory& inventory = loaded.model->inventory();
  const HuggingFaceReader reader(directory, described.family.huggingface.layout(loaded.settings), inventory);
  reader.check_tied_copy();
  fill_parameters(backend, inventory, [&](const ParameterDeclaration& parameter, int64_t first, int64_t count, float* out) {
    reader.read(parameter.name, first, count, out);
  });
  return loaded;
}

}  // namespace

LoadedModel load_model(Backend& backend, const std::string& path, const std::string& tokenizer, const std::vector<ModelFamily>& families) {
  TokenizerHandle given;
  if (!tokenizer.empty()) given = tokenizer == "byte" ? make_byte_tokenizer() : read_tokenizer(tokenizer);
  LoadedModel loaded = is_huggingface(path) ? load_huggingface(backend, path, std::move(given), families)
                                            : load_checkpoint(backend, path, std::move(given), families);
  const int64_t classes = loaded.model->facts().vocabulary_size;
  if (loaded.tokenizer && loaded.tokenizer->vocabulary_size() > classes)
    throw DataError(text("the tokenizer has ", loaded.tokenizer->vocabulary_size(), " ids, the model in ", loaded.origin, " knows ",
                         classes, "; give the model's own with --tokenizer"));
  return loaded;
}

const Tokenizer& require_tokenizer(const LoadedModel& loaded) {
  if (loaded.tokenizer) return *loaded.tokenizer;
  const std::string why = is_huggingface(loaded.origin) ? "there is no tokenizer.json in it" : "it was trained on token files";
  throw CheckpointError(
      text(loaded.origin, " holds no tokenizer (", why, "), so text cannot be read or written; give one with --tokenizer"));
}

}  // namespace dmuon
