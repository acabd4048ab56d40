#include "train/huggingface_export.h"

#include <unistd.h>

#include "dmuon/config/configuration.h"
#include "dmuon/core/error.h"
#include "dmuon/core/hash.h"
#include "dmuon/core/log.h"
#include "dmuon/core/text.h"
#include "dmuon/data/tokenizer.h"
#include "dmuon/io/checkpoint_reader.h"
#include "dmuon/io/checkpoint_writer.h"
#include "dmuon/io/huggingface.h"
#include "train/checkpointing.h"
#include "train/huggingface.h"
#include "train/run.h"

namespace dmuon {
namespace {

// Token ids that generation starts and stops with, as config.json and generation_config.json have them.
Json token_ids(const Tokenizer* tokenizer) {
  const auto id = tokenizer ? tokenizer->end_of_text() : std::nullopt;
  Json ids = Json::object();
  for (const char* key : {"bos_token_id", "eos_token_id"}) ids.set(key, id ? Json(static_cast<int64_t>(*id)) : Json());
  return ids;
}

std::vector<ExpectedTensor> expected_tensors(const Inventory& inventory) {
  std::vector<ExpectedTensor> expected;
  for (const ParameterDeclaration& parameter : inventory.parameters())
    expected.push_back({parameter.name, DType::float32, parameter.shape});
  return expected;
}

}  // namespace

void export_checkpoint(const CheckpointExport& request, const std::vector<ModelFamily>& families) {
  const CheckpointReader reader(resolve_checkpoint(request.checkpoint));
  const Json settings = parse_json(reader.text_of("model.json"), "model.json");
  const ModelFamily& family = find_family(families, settings.at("family").as_string());
  if (!family.huggingface.defined())
    throw ConfigError(text("models of family \"", family.name, "\" have no form in Hugging Face directories"));
  const std::unique_ptr<Model> model = family.make(settings);
  reader.check_tensors(expected_tensors(model->inventory()), true);
  TokenizerHandle tokenizer;
  if (reader.has_text("tokenizer.json")) tokenizer = tokenizer_from_json(parse_json(reader.text_of("tokenizer.json"), "tokenizer.json"));

  HuggingFaceExport out;
  out.directory = request.output;
  out.config = family.huggingface.config(settings);
  out.layout = family.huggingface.layout(settings);
  out.dtype = request.dtype;
  out.shard_bytes = request.shard_bytes;
  Json generation = Json::object();
  const Json ids = token_ids(tokenizer.get());
  for (const auto& [key, value] : ids.as_object()) {
    out.config.set(key, value);
    generation.set(key, value);
  }
  generation.set("do_sample", false);
  out.files.emplace_back("generation_config.json", generation.dump(2) + "\n");
  if (tokenizer)
    for (const TokenizerFile& file : tokenizer->huggingface_files()) out.files.emplace_back(file.name, file.content);
  out.read = [&](const std::string& parameter, int64_t first, int64_t count, float* values) {
    reader.read_tensor(parameter, first * 4, values, count * 4);
  };
  write_huggingface(out);
}

Path import_checkpoint(const Path& directory, const Path& output, const std::vector<ModelFamily>& families) {
  // The resolved "model" object, by the same path as a run's.
  Json tree = Json::object(), section = Json::object(), training = Json::object();
  section.set("from", std::filesystem::absolute(directory).string());
  tree.set("model", std::move(section));
  const ModelImport import_model = huggingface_import(families);
  const ImportedModel imported = import_model(directory.string(), "");
  training.set("batch_tokens", imported.settings.at("context_length"));
  tree.set("training", std::move(training));
  const Configuration configuration = parse_configuration(tree.dump(), directory.string(), {}, import_model);
  const Json settings = to_json(configuration).at("model");
  const ModelFamily& family = find_family(families, configuration.model.family);
  const std::unique_ptr<Model> model = family.make(settings);
  const HuggingFaceReader reader(directory, family.huggingface.layout(settings), model->inventory());
  reader.check_tied_copy();
  for (const std::string& note : reader.notes()) log_information(text("note: ", note));
  TokenizerHandle tokenizer;
  if (!imported.tokenizer.empty()) tokenizer = read_tokenizer(imported.tokenizer);

  std::vector<CheckpointTensor> tensors;
  int64_t bytes = 0;
  for (const ParameterDeclaration& parameter : model->inventory().parameters()) {
    const std::string& name = parameter.name;
    tensors.push_back({name, DType::float32, parameter.shape, [&reader, &name](int64_t offset, void* destination, int64_t count) {
                         reader.read(name, offset / 4, count / 4, static_cast<float*>(destination));
                       }});
    bytes += parameter.shape.elements() * 4;
  }
  std::filesystem::create_directories(output);
  check_free_space(output, bytes);
  CheckpointWriter writer({output, 0, text("import-", getpid()), 0});
  writer.begin();
  try {
    std::vector<Json> fragments{writer.write_tensors(model_file_name(0, 1), tensors), writer.write_tensors(optimizer_file_name(0), {})};
    const auto write = [&](const char* name, const std::string& content) { fragments.push_back(writer.write_text(name, content + "\n")); };
    write("train_state.json", to_json(TrainState{}).dump(2));
    write("configuration.json", to_json(configuration).dump(2));
    write("model.json", settings.dump(2));
    if (tokenizer) write("tokenizer.json", tokenizer->to_json().dump());
    ManifestInformation information;
    information.configuration_hash = hash_to_hex(configuration_hash(configuration));
    writer.publish(fragments, information);
  } catch (...) {
    writer.abandon();
    throw;
  }
  return writer.final_path();
}

}  // namespace dmuon
