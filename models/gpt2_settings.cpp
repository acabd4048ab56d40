#include "dmuon/core/checked.h"
#include "dmuon/core/text.h"
#include "models/gpt2.h"

namespace dmuon {

namespace {

int64_t positive(const Json& settings, const char* key, int64_t fallback) {
  const Json* value = settings.find(key);
  const int64_t number = value ? value->as_integer() : fallback;
  if (number < 1) throw ConfigError(text("model.", key, " must be at least 1, found ", number));
  return number;
}

double number_in(const Json& settings, const char* key, double fallback, double lowest, double below) {
  const Json* value = settings.find(key);
  const double number = value ? value->as_number() : fallback;
  if (!(number >= lowest && number < below))
    throw ConfigError(text("model.", key, " must be at least ", lowest, " and below ", below, ", found ", number));
  return number;
}

template <class T>
T one_of(const Json& settings, const char* key, T fallback, const std::vector<std::pair<std::string, T>>& choices) {
  const Json* value = settings.find(key);
  if (value == nullptr) return fallback;
  std::vector<std::string> names;
  for (const auto& [name, choice] : choices) {
    if (value->as_string() == name) return choice;
    names.push_back(name);
  }
  throw ConfigError(text("model.", key, " must be one of ", join(names, ", "), ", found \"", value->as_string(), '"'));
}

}  // namespace

Gpt2Settings Gpt2Settings::from_json(const Json& json) {
  Gpt2Settings s;
  s.layers = positive(json, "layers", s.layers);
  s.heads = positive(json, "heads", s.heads);
  s.width = positive(json, "width", s.width);
  s.context_length = positive(json, "context_length", s.context_length);
  s.vocabulary_size = positive(json, "vocabulary_size", s.vocabulary_size);
  s.vocabulary_multiple = positive(json, "vocabulary_multiple", s.vocabulary_multiple);
  s.normalization.kind =
      one_of<NormalizationKind>(json, "normalization", s.normalization.kind,
                                {{"layer_norm", NormalizationKind::layer_norm}, {"rms_norm", NormalizationKind::rms_norm}});
  s.normalization.epsilon = number_in(json, "normalization_epsilon", s.normalization.epsilon, 0.0, 1.0);
  s.activation = one_of<ActivationKind>(
      json, "activation", s.activation,
      {{"gelu", ActivationKind::gelu}, {"gelu_tanh", ActivationKind::gelu_tanh}, {"relu_squared", ActivationKind::relu_squared}});
  if (const Json* value = json.find("tied_head")) s.tied_head = value->as_bool();
  if (const Json* value = json.find("bias")) s.bias = value->as_bool();
  s.dropout = number_in(json, "dropout", s.dropout, 0.0, 1.0);
  s.initializer = one_of<MatrixInitializer>(json, "initializer", s.initializer,
                                            {{"fixed", MatrixInitializer::fixed}, {"fan_in", MatrixInitializer::fan_in}});
  s.initializer_deviation = number_in(json, "initializer_deviation", s.initializer_deviation, 0.0, 1e6);
  if (s.width % s.heads != 0) throw ConfigError(text("model.heads = ", s.heads, " must divide model.width = ", s.width));
  return s;
}

int64_t Gpt2Settings::padded_vocabulary() const { return round_up(vocabulary_size, vocabulary_multiple); }

}  // namespace dmuon
