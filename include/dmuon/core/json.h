// JSON values and a strict parser: no duplicate keys, no comments, no trailing text, at most 128 levels, valid UTF-8.
// Objects keep the order of their keys. Numbers keep whether they were written as integers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace dmuon {

class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() = default;  // null
  Json(std::nullptr_t) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<int64_t>(value)) {}
  Json(int64_t value) : value_(value) {}
  Json(uint64_t value);
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}
  static Json array() { return Json(Array{}); }
  static Json object() { return Json(Object{}); }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_) || std::holds_alternative<uint64_t>(value_); }
  bool is_negative() const { return std::holds_alternative<int64_t>(value_) && std::get<int64_t>(value_) < 0; }  // as an integer
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  std::string_view type_name() const;  // "null", "boolean", "integer", "number", "string", "array", "object"

  // Accessors throw ConfigError naming found and expected type (or a range that does not fit).
  bool as_bool() const;
  int64_t as_integer() const;
  uint64_t as_unsigned() const;
  double as_number() const;
  const std::string& as_string() const&;
  const Array& as_array() const&;
  Array& as_array() &;
  const Object& as_object() const&;
  Object& as_object() &;
  // Of a temporary by value, so that a loop over parse_json(...).as_array() holds what it walks.
  std::string as_string() && { return std::as_const(*this).as_string(); }
  Array as_array() && { return std::as_const(*this).as_array(); }
  Object as_object() && { return std::as_const(*this).as_object(); }

  // Objects: null if absent / throws ConfigError naming the key / inserts or replaces.
  const Json* find(std::string_view key) const;
  Json* find(std::string_view key);
  const Json& at(std::string_view key) const;
  void set(std::string_view key, Json value);
  void push_back(Json value);

  // indent < 0: one line. Non-finite numbers become null. Doubles print so that they read back to the same bits.
  std::string dump(int indent = -1) const;

  friend bool operator==(const Json&, const Json&) = default;

 private:
  std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, Array, Object> value_;
};

struct JsonLimits {
  int maximum_depth = 128;
  int64_t maximum_values = 50'000'000;
};
// `origin` names the text in errors ("configs/x.json"), which carry line and column. Throws ConfigError.
Json parse_json(std::string_view text, std::string_view origin, const JsonLimits& limits = {});

}  // namespace dmuon
