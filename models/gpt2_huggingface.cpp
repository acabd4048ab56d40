#include "models/gpt2_huggingface.h"

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "models/gpt2.h"

namespace dmuon {
namespace {

// transformers' name of each activation, the one to write first.
constexpr std::pair<const char*, const char*> activations[] = {
    {"gelu_tanh", "gelu_new"}, {"gelu_tanh", "gelu_pytorch_tanh"}, {"gelu", "gelu"}, {"relu_squared", "relu2"}};

std::string activation_of(const HuggingFaceConfig& config) {
  const std::string name = config.word("activation_function", "gelu_new");
  for (const auto& [ours, theirs] : activations)
    if (name == theirs) return ours;
  config.refuse("activation_function", "gelu_new, gelu_pytorch_tanh, gelu or relu2");
}

// A key that the settings may lack, as resolved ones never do.
std::string word(const Json& settings, const char* key, const char* otherwise) {
  const Json* value = settings.find(key);
  return value ? value->as_string() : otherwise;
}
int64_t feed_forward_width(const Json& settings, int64_t width) {
  const Json* value = settings.find("feed_forward_width");
  return value && value->as_integer() > 0 ? value->as_integer() : 4 * width;
}

Json settings_of(const HuggingFaceConfig& config) {
  config.require("scale_attn_weights", true);
  config.require("scale_attn_by_inverse_layer_idx", false);
  config.require("reorder_and_upcast_attn", false);
  config.require("add_cross_attention", false);
  Json settings = Json::object();
  settings.set("family", "gpt2");
  settings.set("layers", config.integer("n_layer", std::nullopt, 4096));
  settings.set("heads", config.integer("n_head"));
  const int64_t width = config.integer("n_embd");
  if (width % settings.at("heads").as_integer() != 0) config.refuse("n_head", text("a divisor of n_embd = ", width));
  settings.set("width", width);
  settings.set("feed_forward_width", config.integer("n_inner", 4 * width));
  settings.set("context_length", config.integer(config.find("n_positions") ? "n_positions" : "n_ctx"));
  settings.set("vocabulary_size", config.integer("vocab_size"));
  settings.set("normalization", "layer_norm");
  settings.set("normalization_epsilon", config.number("layer_norm_epsilon", 1e-5));
  settings.set("activation", activation_of(config));
  settings.set("tied_head", config.boolean("tie_word_embeddings", true));
  settings.set("bias", true);
  return settings;
}

Json config_of(const Json& settings) {
  const Gpt2Settings s = Gpt2Settings::from_json(settings);
  if (s.normalization.kind != NormalizationKind::layer_norm)
    throw ConfigError("model.normalization = \"rms_norm\": GPT-2 of transformers has LayerNorm only, so this model cannot be exported");
  if (!s.bias) throw ConfigError("model.bias = false: GPT-2 of transformers has biases, so this model cannot be exported");
  Json config = Json::object();
  config.set("architectures", Json::Array{"GPT2LMHeadModel"});
  config.set("model_type", "gpt2");
  config.set("vocab_size", s.vocabulary_size);
  config.set("n_positions", s.context_length);
  config.set("n_embd", s.width);
  config.set("n_layer", s.layers);
  config.set("n_head", s.heads);
  const int64_t inner = feed_forward_width(settings, s.width);
  config.set("n_inner", inner == 4 * s.width ? Json() : Json(inner));
  const std::string activation = word(settings, "activation", "gelu");
  for (const auto& [ours, theirs] : activations)
    if (activation == ours && !config.find("activation_function")) config.set("activation_function", theirs);
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) config.set(key, s.dropout);
  config.set("layer_norm_epsilon", s.normalization.epsilon);
  config.set("initializer_range", s.initializer_deviation);
  config.set("scale_attn_weights", true);
  config.set("scale_attn_by_inverse_layer_idx", false);
  config.set("reorder_and_upcast_attn", false);
  config.set("tie_word_embeddings", s.tied_head);
  config.set("use_cache", true);
  return config;
}

HuggingFaceLayout layout_of(const Json& settings) {
  const Gpt2Settings s = Gpt2Settings::from_json(settings);
  const int64_t width = s.width, inner = feed_forward_width(settings, width);
  HuggingFaceLayout layout;
  layout.optional_prefix = "transformer.";
  const auto table = [&](const char* name, const char* parameter, int64_t rows) {
    layout.tensors.push_back({name, Shape{rows, width}, false, {{parameter, rows}}});
  };
  const auto norm = [&](const std::string& name, const std::string& parameter) {
    for (const char* part : {".weight", ".bias"}) layout.tensors.push_back({name + part, Shape{width}, false, {{parameter + part, width}}});
  };
  const auto layer = [&](const std::string& name, const std::vector<std::string>& parameters, int64_t out, int64_t in) {
    const auto parts = static_cast<int64_t>(parameters.size());
    HuggingFaceTensor weight{name + ".weight", Shape{in, out * parts}, true, {}}, bias{name + ".bias", Shape{out * parts}, false, {}};
    for (const std::string& parameter : parameters) {
      weight.parts.push_back({parameter + ".weight", out});
      bias.parts.push_back({parameter + ".bias", out});
    }
    layout.tensors.push_back(std::move(weight));
    layout.tensors.push_back(std::move(bias));
  };
  table("transformer.wte.weight", "embedding.token.weight", s.vocabulary_size);
  table("transformer.wpe.weight", "embedding.position.weight", s.context_length);
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string theirs = text("transformer.h.", i), ours = text("blocks.", i);
    norm(theirs + ".ln_1", ours + ".attention_norm");
    layer(theirs + ".attn.c_attn", {ours + ".attention.query", ours + ".attention.key", ours + ".attention.value"}, width, width);
    layer(theirs + ".attn.c_proj", {ours + ".attention.output"}, width, width);
    norm(theirs + ".ln_2", ours + ".mlp_norm");
    layer(theirs + ".mlp.c_fc", {ours + ".mlp.up"}, inner, width);
    layer(theirs + ".mlp.c_proj", {ours + ".mlp.down"}, width, inner);
    for (const char* buffer : {".attn.bias", ".attn.masked_bias"}) layout.ignored.push_back(theirs + buffer);  // the causal mask
  }
  norm("transformer.ln_f", "final_norm");
  if (s.tied_head)
    layout.tied_copy = "lm_head.weight", layout.tied_to = "transformer.wte.weight";
  else
    table("lm_head.weight", "head.weight", s.vocabulary_size);
  return layout;
}

}  // namespace

HuggingFaceFamily gpt2_huggingface() {
  HuggingFaceFamily family;
  family.architectures = {{"gpt2", "GPT2LMHeadModel"}};
  family.known_keys = {"activation_function",
                       "add_cross_attention",
                       "attn_pdrop",
                       "embd_pdrop",
                       "initializer_range",
                       "layer_norm_epsilon",
                       "n_ctx",
                       "n_embd",
                       "n_head",
                       "n_inner",
                       "n_layer",
                       "n_positions",
                       "reorder_and_upcast_attn",
                       "resid_pdrop",
                       "scale_attn_by_inverse_layer_idx",
                       "scale_attn_weights",
                       "summary_activation",
                       "summary_first_dropout",
                       "summary_proj_to_labels",
                       "summary_type",
                       "summary_use_proj",
                       "task_specific_params",
                       "tie_word_embeddings",
                       "vocab_size"};
  family.settings = settings_of;
  family.config = config_of;
  family.layout = layout_of;
  return family;
}

}  // namespace dmuon
