// Reading the "model" object: what every family shares.
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "models/transformer.h"

namespace dmuon {

int64_t positive_setting(const Json& settings, const char* key, int64_t fallback) {
  const Json* value = settings.find(key);
  const int64_t number = value ? value->as_integer() : fallback;
  if (number < 1) throw ConfigError(text("model.", key, " must be at least 1, found ", number));
  return number;
}

int64_t size_setting(const Json& settings, const char* key, int64_t otherwise) {
  const Json* value = settings.find(key);
  const int64_t number = value ? value->as_integer() : 0;
  if (number < 0) throw ConfigError(text("model.", key, " must be at least 0, found ", number));
  return number == 0 ? otherwise : number;
}

double number_setting(const Json& settings, const char* key, double fallback, double lowest, double below) {
  const Json* value = settings.find(key);
  const double number = value ? value->as_number() : fallback;
  if (!(number >= lowest && number < below))
    throw ConfigError(text("model.", key, " must be at least ", lowest, " and below ", below, ", found ", number));
  return number;
}

bool flag_setting(const Json& settings, const char* key, bool fallback) {
  const Json* value = settings.find(key);
  return value ? value->as_bool() : fallback;
}

MatrixInitializer initializer_setting(const Json& settings, MatrixInitializer fallback) {
  return choice_setting<MatrixInitializer>(settings, "initializer", fallback,
                                           {{"fixed", MatrixInitializer::fixed}, {"fan_in", MatrixInitializer::fan_in}});
}

void refuse_choice(const char* key, const std::string& found, const std::vector<std::string>& names) {
  throw ConfigError(text("model.", key, " must be one of ", join(names, ", "), ", found \"", found, '"'));
}

}  // namespace dmuon
