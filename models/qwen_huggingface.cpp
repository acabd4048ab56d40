#include "models/qwen_huggingface.h"

#include <algorithm>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// The base of the rotary positions, in either spelling; anything that would change them is refused.
double rotary_base(const HuggingFaceConfig& config) {
  double base = config.number("rope_theta", 10000.0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* rope = config.find(key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) config.refuse(key, "an object");
    const std::string default_only = "rope_type \"default\" and rope_theta alone: scaled positions are not implemented";
    for (const auto& [name, value] : rope->as_object()) {
      if (name == "rope_theta") {
        if (!value.is_number()) config.refuse(key, "a number as rope_theta");
        base = value.as_number();
      } else if (name == "rope_type" || name == "type") {
        if (!(value == Json("default"))) config.refuse(key, default_only);
      } else if (!(name == "partial_rotary_factor" && value.is_number() && value.as_number() == 1.0)) {
        config.refuse(key, default_only);
      }
    }
  }
  if (!(base > 1.0 && base < 1e12)) config.refuse("rope_theta", "a number above 1");
  return base;
}

Json settings_of(const HuggingFaceConfig& config) {
  const bool qwen3 = config.word("model_type") == "qwen3";
  config.require("hidden_act", "silu");
  config.require("use_sliding_window", false);
  config.require("attention_dropout", 0.0);
  config.require("use_mrope", false);
  Json settings = Json::object();
  settings.set("family", "qwen");
  const int64_t layers = config.integer("num_hidden_layers", std::nullopt, 4096);
  const int64_t width = config.integer("hidden_size"), heads = config.integer("num_attention_heads", std::nullopt, 4096);
  const int64_t key_value_heads = config.integer("num_key_value_heads", heads);
  if (heads % key_value_heads != 0) config.refuse("num_key_value_heads", text("a divisor of num_attention_heads = ", heads));
  if (!config.find("head_dim") && width % heads != 0) config.refuse("num_attention_heads", text("a divisor of hidden_size = ", width));
  if (const Json* types = config.find("layer_types")) {
    const bool fits = types->is_array() && static_cast<int64_t>(types->as_array().size()) == layers;
    if (!fits) config.refuse("layer_types", text("a list of num_hidden_layers = ", layers, " entries"));
    for (const Json& type : types->as_array())
      if (!(type == Json("full_attention"))) config.refuse("layer_types", "\"full_attention\" in every layer");
  }
  settings.set("layers", layers);
  settings.set("heads", heads);
  settings.set("key_value_heads", key_value_heads);
  settings.set("head_width", config.integer("head_dim", qwen3 ? 128 : width / heads));
  if (settings.at("head_width").as_integer() % 2 != 0) config.refuse("head_dim", "an even number: rotary positions turn pairs");
  settings.set("width", width);
  settings.set("feed_forward_width", config.integer("intermediate_size"));
  settings.set("context_length", config.integer("max_position_embeddings"));
  settings.set("maximum_positions", config.integer("max_position_embeddings"));
  settings.set("vocabulary_size", config.integer("vocab_size"));
  settings.set("normalization_epsilon", config.number("rms_norm_eps", 1e-6));
  settings.set("rotary_base", rotary_base(config));
  // Qwen3's attention_bias would put one on the output projection too.
  if (qwen3) config.require("attention_bias", false);
  settings.set("attention_bias", !qwen3);
  settings.set("query_key_normalization", qwen3);
  settings.set("tied_head", config.boolean("tie_word_embeddings", false));
  return settings;
}

// Sizes of a model of family qwen, from its settings.
struct Sizes {
  int64_t layers, width, heads, key_value_heads, head_width, feed_forward, vocabulary, context, positions;
  bool bias, normalized, tied;
  double epsilon, base;

  explicit Sizes(const Json& settings) {
    const auto integer = [&](const char* key, int64_t otherwise) {
      const Json* value = settings.find(key);
      return value && value->as_integer() > 0 ? value->as_integer() : otherwise;
    };
    const auto flag = [&](const char* key, bool otherwise) {
      const Json* value = settings.find(key);
      return value ? value->as_bool() : otherwise;
    };
    const auto number = [&](const char* key, double otherwise) {
      const Json* value = settings.find(key);
      return value ? value->as_number() : otherwise;
    };
    layers = settings.at("layers").as_integer();
    width = settings.at("width").as_integer();
    heads = settings.at("heads").as_integer();
    vocabulary = settings.at("vocabulary_size").as_integer();
    context = settings.at("context_length").as_integer();
    positions = integer("maximum_positions", context);
    key_value_heads = integer("key_value_heads", heads);
    head_width = integer("head_width", width / heads);
    feed_forward = integer("feed_forward_width", 4 * width);
    bias = flag("attention_bias", true);
    normalized = flag("query_key_normalization", false);
    tied = flag("tied_head", true);
    epsilon = number("normalization_epsilon", 1e-5);
    base = number("rotary_base", 10000.0);
  }
};

Json config_of(const Json& settings) {
  const Sizes s(settings);
  if (s.bias == s.normalized)
    throw ConfigError(text(
        "model.attention_bias = ", s.bias ? "true" : "false", " with model.query_key_normalization = ", s.normalized ? "true" : "false",
        " is neither Qwen2 (biases, no norms) nor Qwen3 (norms, no biases)", " of transformers, so this model cannot be exported"));
  Json config = Json::object();
  config.set("architectures", Json::Array{s.normalized ? "Qwen3ForCausalLM" : "Qwen2ForCausalLM"});
  config.set("model_type", s.normalized ? "qwen3" : "qwen2");
  config.set("vocab_size", s.vocabulary);
  config.set("hidden_size", s.width);
  config.set("intermediate_size", s.feed_forward);
  config.set("num_hidden_layers", s.layers);
  config.set("num_attention_heads", s.heads);
  config.set("num_key_value_heads", s.key_value_heads);
  if (s.normalized || s.head_width * s.heads != s.width) config.set("head_dim", s.head_width);
  config.set("hidden_act", "silu");
  config.set("max_position_embeddings", std::max(s.context, s.positions));
  config.set("rms_norm_eps", s.epsilon);
  config.set("rope_theta", s.base);
  config.set("rope_scaling", Json());
  config.set("attention_dropout", 0.0);
  if (s.normalized) config.set("attention_bias", false);
  const Json* deviation = settings.find("initializer_deviation");
  config.set("initializer_range", deviation ? *deviation : Json(0.02));
  config.set("use_sliding_window", false);
  config.set("sliding_window", Json());
  config.set("max_window_layers", s.layers);
  config.set("tie_word_embeddings", s.tied);
  config.set("use_cache", true);
  return config;
}

HuggingFaceLayout layout_of(const Json& settings) {
  const Sizes s(settings);
  HuggingFaceLayout layout;
  const auto matrix = [&](const std::string& name, const std::string& parameter, int64_t out, int64_t in) {
    layout.tensors.push_back({name + ".weight", Shape{out, in}, false, {{parameter + ".weight", out}}});
  };
  const auto vector = [&](const std::string& name, const std::string& parameter, int64_t size) {
    layout.tensors.push_back({name, Shape{size}, false, {{parameter, size}}});
  };
  matrix("model.embed_tokens", "embedding.token", s.vocabulary, s.width);
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string theirs = text("model.layers.", i, "."), ours = text("blocks.", i, ".");
    const int64_t query = s.heads * s.head_width, key_value = s.key_value_heads * s.head_width;
    vector(theirs + "input_layernorm.weight", ours + "attention_norm.weight", s.width);
    const auto projection = [&](const char* name, const char* parameter, int64_t out) {
      matrix(theirs + "self_attn." + name, ours + "attention." + parameter, out, s.width);
      if (s.bias) vector(theirs + "self_attn." + name + ".bias", ours + "attention." + parameter + ".bias", out);
    };
    projection("q_proj", "query", query);
    projection("k_proj", "key", key_value);
    projection("v_proj", "value", key_value);
    matrix(theirs + "self_attn.o_proj", ours + "attention.output", s.width, query);
    if (s.normalized)
      for (const auto& [name, parameter] : {std::pair("q_norm", "query_norm"), std::pair("k_norm", "key_norm")})
        vector(theirs + "self_attn." + name + ".weight", ours + "attention." + parameter + ".weight", s.head_width);
    vector(theirs + "post_attention_layernorm.weight", ours + "mlp_norm.weight", s.width);
    matrix(theirs + "mlp.gate_proj", ours + "mlp.gate", s.feed_forward, s.width);
    matrix(theirs + "mlp.up_proj", ours + "mlp.up", s.feed_forward, s.width);
    matrix(theirs + "mlp.down_proj", ours + "mlp.down", s.width, s.feed_forward);
    layout.ignored.push_back(theirs + "self_attn.rotary_emb.inv_freq");  // recomputed from rope_theta
  }
  vector("model.norm.weight", "final_norm.weight", s.width);
  if (s.tied)
    layout.tied_copy = "lm_head.weight", layout.tied_to = "model.embed_tokens.weight";
  else
    matrix("lm_head", "head", s.vocabulary, s.width);
  return layout;
}

}  // namespace

HuggingFaceFamily qwen_huggingface() {
  HuggingFaceFamily family;
  family.architectures = {{"qwen2", "Qwen2ForCausalLM"}, {"qwen3", "Qwen3ForCausalLM"}};
  family.shorter_context = true;
  family.known_keys = {"attention_bias",      "attention_dropout",   "head_dim",
                       "hidden_act",          "hidden_size",         "initializer_range",
                       "intermediate_size",   "layer_types",         "max_position_embeddings",
                       "max_window_layers",   "num_attention_heads", "num_hidden_layers",
                       "num_key_value_heads", "rms_norm_eps",        "rope_parameters",
                       "rope_scaling",        "rope_theta",          "sliding_window",
                       "tie_word_embeddings", "use_mrope",           "use_sliding_window",
                       "vocab_size"};
  family.settings = settings_of;
  family.config = config_of;
  family.layout = layout_of;
  return family;
}

}  // namespace dmuon
