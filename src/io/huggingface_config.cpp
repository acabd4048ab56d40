#include <algorithm>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/io/huggingface.h"
#include "io/safetensors_format.h"

namespace dmuon {
namespace {

// Keys of every family that do not change what the model computes.
constexpr std::string_view common_keys[] = {"_attn_implementation",
                                            "_name_or_path",
                                            "architectures",
                                            "attn_implementation",
                                            "bos_token_id",
                                            "chunk_size_feed_forward",
                                            "dtype",
                                            "eos_token_id",
                                            "finetuning_task",
                                            "id2label",
                                            "is_decoder",
                                            "is_encoder_decoder",
                                            "label2id",
                                            "model_type",
                                            "output_attentions",
                                            "output_hidden_states",
                                            "pad_token_id",
                                            "problem_type",
                                            "return_dict",
                                            "tokenizer_class",
                                            "torch_dtype",
                                            "transformers_version",
                                            "use_cache"};

const ModelFamily& family_of(const HuggingFaceConfig& config, const std::vector<ModelFamily>& families) {
  const std::string type = config.word("model_type");
  std::vector<std::string> known;
  for (const ModelFamily& family : families)
    for (const auto& architecture : family.huggingface.architectures) {
      known.push_back(architecture.model_type);
      if (architecture.model_type != type) continue;
      if (const Json* classes = config.find("architectures"))
        if (!(*classes == Json(Json::Array{architecture.class_name})))
          config.refuse("architectures", text("[\"", architecture.class_name, "\"]"));
      return family;
    }
  config.refuse("model_type", text("one of ", join(known, ", ")));
}

}  // namespace

HuggingFaceModel parse_huggingface_config(std::string_view source, const std::string& origin, const std::vector<ModelFamily>& families) {
  const Json json = parse_json(source, origin, {64, 1'000'000});
  const HuggingFaceConfig config(json, origin);
  for (const char* key : {"auto_map", "quantization_config"})
    if (config.find(key)) config.refuse(key, "no such key: neither code from the directory nor quantised weights are loaded");
  HuggingFaceModel model;
  model.family = family_of(config, families);
  model.settings = model.family.huggingface.settings(config);
  std::vector<std::string> ignored;
  const auto& known = model.family.huggingface.known_keys;
  for (const auto& [key, value] : json.as_object())
    if (std::find(std::begin(common_keys), std::end(common_keys), key) == std::end(common_keys) &&
        std::find(known.begin(), known.end(), key) == known.end())
      ignored.push_back(printable_name(key));
  if (!ignored.empty()) model.notes.push_back(text(origin, ": keys that dmuon does not know are ignored: ", join(ignored, ", ")));
  return model;
}

HuggingFaceModel read_huggingface_config(const Path& directory, const std::vector<ModelFamily>& families) {
  const Path file = directory / "config.json";
  constexpr int64_t largest = 16 << 20;
  return parse_huggingface_config(read_file(file, largest), file.string(), families);
}

}  // namespace dmuon
