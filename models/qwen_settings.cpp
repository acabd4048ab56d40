#include "dmuon/core/checked.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "models/qwen.h"

namespace dmuon {

QwenSettings QwenSettings::from_json(const Json& json) {
  QwenSettings s;
  s.layers = positive_setting(json, "layers", s.layers);
  s.heads = positive_setting(json, "heads", s.heads);
  s.width = positive_setting(json, "width", s.width);
  s.key_value_heads = size_setting(json, "key_value_heads", s.heads);
  s.head_width = size_setting(json, "head_width", s.width / s.heads);
  s.feed_forward_width = size_setting(json, "feed_forward_width", 4 * s.width);
  s.context_length = positive_setting(json, "context_length", s.context_length);
  s.vocabulary_size = positive_setting(json, "vocabulary_size", s.vocabulary_size);
  s.vocabulary_multiple = positive_setting(json, "vocabulary_multiple", s.vocabulary_multiple);
  s.rotary_base = number_setting(json, "rotary_base", s.rotary_base, 1.0, 1e12);
  s.normalization_epsilon = number_setting(json, "normalization_epsilon", s.normalization_epsilon, 0.0, 1.0);
  s.attention_bias = flag_setting(json, "attention_bias", s.attention_bias);
  s.query_key_normalization = flag_setting(json, "query_key_normalization", s.query_key_normalization);
  s.tied_head = flag_setting(json, "tied_head", s.tied_head);
  s.initializer = initializer_setting(json, s.initializer);
  s.initializer_deviation = number_setting(json, "initializer_deviation", s.initializer_deviation, 0.0, 1e6);
  const Json* given = json.find("head_width");
  if ((given == nullptr || given->as_integer() == 0) && s.width % s.heads != 0)
    throw ConfigError(text("model.heads = ", s.heads, " must divide model.width = ", s.width, " unless model.head_width is given"));
  if (s.heads % s.key_value_heads != 0)
    throw ConfigError(text("model.key_value_heads = ", s.key_value_heads, " must divide model.heads = ", s.heads));
  if (s.head_width % 2 != 0)
    throw ConfigError(text("model.head_width = ", s.head_width, " must be even: rotary positions turn pairs of channels"));
  return s;
}

int64_t QwenSettings::padded_vocabulary() const { return round_up(vocabulary_size, vocabulary_multiple); }

}  // namespace dmuon
