#include "dmuon/core/checked.h"
#include "dmuon/core/text.h"
#include "models/gpt2.h"

namespace dmuon {

Gpt2Settings Gpt2Settings::from_json(const Json& json) {
  Gpt2Settings s;
  s.layers = positive_setting(json, "layers", s.layers);
  s.heads = positive_setting(json, "heads", s.heads);
  s.width = positive_setting(json, "width", s.width);
  s.feed_forward_width = size_setting(json, "feed_forward_width", 4 * s.width);
  s.context_length = positive_setting(json, "context_length", s.context_length);
  s.vocabulary_size = positive_setting(json, "vocabulary_size", s.vocabulary_size);
  s.vocabulary_multiple = positive_setting(json, "vocabulary_multiple", s.vocabulary_multiple);
  s.normalization.kind =
      choice_setting<NormalizationKind>(json, "normalization", s.normalization.kind,
                                        {{"layer_norm", NormalizationKind::layer_norm}, {"rms_norm", NormalizationKind::rms_norm}});
  s.normalization.epsilon = number_setting(json, "normalization_epsilon", s.normalization.epsilon, 0.0, 1.0);
  s.activation = choice_setting<ActivationKind>(
      json, "activation", s.activation,
      {{"gelu", ActivationKind::gelu}, {"gelu_tanh", ActivationKind::gelu_tanh}, {"relu_squared", ActivationKind::relu_squared}});
  s.tied_head = flag_setting(json, "tied_head", s.tied_head);
  s.bias = flag_setting(json, "bias", s.bias);
  s.dropout = number_setting(json, "dropout", s.dropout, 0.0, 1.0);
  s.initializer = initializer_setting(json, s.initializer);
  s.initializer_deviation = number_setting(json, "initializer_deviation", s.initializer_deviation, 0.0, 1e6);
  if (s.width % s.heads != 0) throw ConfigError(text("model.heads = ", s.heads, " must divide model.width = ", s.width));
  return s;
}

int64_t Gpt2Settings::padded_vocabulary() const { return round_up(vocabulary_size, vocabulary_multiple); }

}  // namespace dmuon
