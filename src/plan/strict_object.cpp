#include "plan/strict_object.h"

#include <algorithm>
#include <cmath>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

StrictObject::StrictObject(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
  if (!json.is_object()) throw ConfigError(text(where_, ": expected an object, found ", json.type_name()));
}

std::string StrictObject::path(const std::string& key) const {
  const bool top = where_.find(": ") == std::string::npos;
  return text(where_, top ? ": " : ".", key);
}

void StrictObject::fail(const std::string& key, const std::string& problem) const { throw ConfigError(text(path(key), ": ", problem)); }

const Json* StrictObject::find(const std::string& key) {
  known_.push_back(key);
  return json_.find(key);
}

const Json& StrictObject::at(const std::string& key) {
  const Json* value = find(key);
  if (value == nullptr) fail(key, "is required and missing");
  return *value;
}

std::string StrictObject::text_at(const std::string& key) {
  const Json& value = at(key);
  if (!value.is_string() || value.as_string().empty()) fail(key, text("expected text, found ", value.dump()));
  return value.as_string();
}

std::string StrictObject::text_or(const std::string& key, const std::string& fallback) {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) fail(key, text("expected text, found ", value->type_name()));
  return value->as_string();
}

bool StrictObject::flag_or(const std::string& key, bool fallback) {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (!value->is_bool()) fail(key, text("expected true or false, found ", value->dump()));
  return value->as_bool();
}

int64_t StrictObject::integer_at(const std::string& key, int64_t lowest, int64_t highest) {
  const Json& value = at(key);
  // Integers beyond 2^63 are kept unsigned.
  const bool fits = value.is_integer() && (value.is_negative() || value.as_unsigned() <= static_cast<uint64_t>(INT64_MAX));
  if (!fits || value.as_integer() < lowest || value.as_integer() > highest)
    fail(key, text("expected an integer from ", lowest, " to ", highest, ", found ", value.dump()));
  return value.as_integer();
}

int64_t StrictObject::integer_or(const std::string& key, int64_t lowest, int64_t highest, int64_t fallback) {
  return json_.find(key) == nullptr ? (known_.push_back(key), fallback) : integer_at(key, lowest, highest);
}

double StrictObject::number_at(const std::string& key, double lowest, double highest) {
  const Json& value = at(key);
  if (!value.is_number() || !std::isfinite(value.as_number()) || value.as_number() < lowest || value.as_number() > highest)
    fail(key, text("expected a number from ", lowest, " to ", highest, ", found ", value.dump()));
  return value.as_number();
}

const Json::Array& StrictObject::array_at(const std::string& key) {
  const Json& value = at(key);
  if (!value.is_array()) fail(key, text("expected a list, found ", value.type_name()));
  return value.as_array();
}

StrictObject StrictObject::object_at(const std::string& key) { return {at(key), path(key)}; }

StrictObject StrictObject::element(const std::string& key, size_t index) {
  return {array_at(key)[index], text(path(key), "[", index, "]")};
}

double StrictObject::sourced_at(const std::string& key, double lowest, double highest) {
  StrictObject object = object_at(key);
  const double value = object.number_at("value", lowest, highest);
  object.text_at("source");
  object.finish();
  return value;
}

double StrictObject::sourced_or(const std::string& key, double lowest, double highest, double fallback) {
  return json_.find(key) == nullptr ? (known_.push_back(key), fallback) : sourced_at(key, lowest, highest);
}

void StrictObject::finish() const {
  for (const auto& [key, value] : json_.as_object()) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    const std::string close = nearest(key, known_);
    fail(key, text("unknown key", close.empty() ? "" : text("; did you mean \"", close, "\"?"), " (allowed: ", join(known_, ", "), ")"));
  }
}

}  // namespace dmuon
