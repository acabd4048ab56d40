#include <cmath>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/nn/huggingface.h"

namespace dmuon {

HuggingFaceConfig::HuggingFaceConfig(const Json& config, std::string origin) : config_(config), origin_(std::move(origin)) {
  if (!config.is_object()) throw ConfigError(text(origin_, ": expected one JSON object, found ", config.type_name()));
}

const Json* HuggingFaceConfig::find(std::string_view key) const {
  const Json* value = config_.find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

const Json& HuggingFaceConfig::at(std::string_view key) const {
  if (const Json* value = find(key)) return *value;
  throw ConfigError(text(origin_, ": ", key, " is missing"));
}

void HuggingFaceConfig::refuse(std::string_view key, const std::string& expected) const {
  const Json* value = find(key);
  std::string found = value ? value->dump() : "nothing";
  if (found.size() > 120) found = found.substr(0, 117) + "...";
  throw ConfigError(text(origin_, ": ", key, " = ", found, " is not supported; expected ", expected));
}

int64_t HuggingFaceConfig::integer(std::string_view key, std::optional<int64_t> otherwise, int64_t largest) const {
  if (otherwise && !find(key)) return *otherwise;
  const Json& value = at(key);
  if (!value.is_integer() || value.as_number() < 1 || value.as_number() > static_cast<double>(largest))
    refuse(key, text("an integer from 1 to ", largest));
  return value.as_integer();
}

double HuggingFaceConfig::number(std::string_view key, std::optional<double> otherwise) const {
  if (otherwise && !find(key)) return *otherwise;
  const Json& value = at(key);
  if (!value.is_number() || !std::isfinite(value.as_number()) || value.as_number() < 0) refuse(key, "a finite number, not negative");
  return value.as_number();
}

bool HuggingFaceConfig::boolean(std::string_view key, std::optional<bool> otherwise) const {
  if (otherwise && !find(key)) return *otherwise;
  const Json& value = at(key);
  if (!value.is_bool()) refuse(key, "true or false");
  return value.as_bool();
}

std::string HuggingFaceConfig::word(std::string_view key, std::optional<std::string> otherwise) const {
  if (otherwise && !find(key)) return *otherwise;
  const Json& value = at(key);
  if (!value.is_string()) refuse(key, "a string");
  return value.as_string();
}

void HuggingFaceConfig::require(std::string_view key, const Json& value) const {
  const Json* found = find(key);
  if (found == nullptr || *found == value || (found->is_number() && value.is_number() && found->as_number() == value.as_number())) return;
  refuse(key, text(value.dump(), ", or no such key"));
}

}  // namespace dmuon
