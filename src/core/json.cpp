#include "dmuon/core/json.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {

// Every integer has one representation, so that equal numbers compare equal however they were made.
Json::Json(uint64_t value) {
  if (value <= static_cast<uint64_t>(INT64_MAX))
    value_ = static_cast<int64_t>(value);
  else
    value_ = value;
}

std::string_view Json::type_name() const {
  static constexpr std::string_view names[] = {"null", "boolean", "integer", "integer", "number", "string", "array", "object"};
  return names[value_.index()];
}

namespace {
[[noreturn]] void mismatch(std::string_view expected, const Json& found) {
  throw ConfigError(text("expected ", expected, ", found ", found.type_name()));
}
}  // namespace

bool Json::as_bool() const {
  if (const bool* value = std::get_if<bool>(&value_)) return *value;
  mismatch("boolean", *this);
}
int64_t Json::as_integer() const {
  if (const int64_t* value = std::get_if<int64_t>(&value_)) return *value;
  if (const uint64_t* value = std::get_if<uint64_t>(&value_)) {
    if (*value > static_cast<uint64_t>(INT64_MAX)) throw ConfigError(text("integer ", *value, " is too large"));
    return static_cast<int64_t>(*value);
  }
  mismatch("integer", *this);
}
uint64_t Json::as_unsigned() const {
  if (const uint64_t* value = std::get_if<uint64_t>(&value_)) return *value;
  if (const int64_t* value = std::get_if<int64_t>(&value_)) {
    if (*value < 0) throw ConfigError(text("integer ", *value, " is negative"));
    return static_cast<uint64_t>(*value);
  }
  mismatch("non-negative integer", *this);
}
double Json::as_number() const {
  if (const double* value = std::get_if<double>(&value_)) return *value;
  if (const int64_t* value = std::get_if<int64_t>(&value_)) return static_cast<double>(*value);
  if (const uint64_t* value = std::get_if<uint64_t>(&value_)) return static_cast<double>(*value);
  mismatch("number", *this);
}
const std::string& Json::as_string() const& {
  if (const auto* value = std::get_if<std::string>(&value_)) return *value;
  mismatch("string", *this);
}
const Json::Array& Json::as_array() const& {
  if (const auto* value = std::get_if<Array>(&value_)) return *value;
  mismatch("array", *this);
}
Json::Array& Json::as_array() & { return const_cast<Array&>(std::as_const(*this).as_array()); }
const Json::Object& Json::as_object() const& {
  if (const auto* value = std::get_if<Object>(&value_)) return *value;
  mismatch("object", *this);
}
Json::Object& Json::as_object() & { return const_cast<Object&>(std::as_const(*this).as_object()); }

const Json* Json::find(std::string_view key) const {
  for (const Member& member : as_object())
    if (member.first == key) return &member.second;
  return nullptr;
}
Json* Json::find(std::string_view key) { return const_cast<Json*>(std::as_const(*this).find(key)); }
const Json& Json::at(std::string_view key) const {
  if (const Json* value = find(key)) return *value;
  throw ConfigError(text("missing key \"", key, "\""));
}
void Json::set(std::string_view key, Json value) {
  if (is_null()) value_ = Object{};
  if (Json* existing = find(key))
    *existing = std::move(value);
  else
    as_object().emplace_back(std::string(key), std::move(value));
}
void Json::push_back(Json value) {
  if (is_null()) value_ = Array{};
  as_array().push_back(std::move(value));
}

namespace {

void write_string(const std::string& value, std::string& out) {
  static constexpr char digits[] = "0123456789abcdef";
  out += '"';
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\r')
      out += "\\r";
    else if (byte < 0x20)
      (((out += "\\u00") += digits[byte >> 4]) += digits[byte & 15]);
    else
      out += c;
  }
  out += '"';
}

void write_double(double value, std::string& out) {
  if (!std::isfinite(value)) {
    out += "null";
    return;
  }
  char buffer[32];
  for (int digits : {15, 16, 17}) {
    std::snprintf(buffer, sizeof buffer, "%.*g", digits, value);
    if (std::strtod(buffer, nullptr) == value) break;
  }
  out += buffer;
  if (std::string_view(buffer).find_first_of(".en") == std::string_view::npos) out += ".0";
}

void write(const Json& value, int indent, int depth, std::string& out) {
  const auto line = [&](int level) {
    if (indent < 0) return;
    out += '\n';
    out.append(static_cast<size_t>(indent * level), ' ');
  };
  if (value.is_null()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.as_bool() ? "true" : "false";
  } else if (value.is_integer()) {
    if (value.is_negative())
      out += std::to_string(value.as_integer());
    else
      out += std::to_string(value.as_unsigned());
  } else if (value.is_number()) {
    write_double(value.as_number(), out);
  } else if (value.is_string()) {
    write_string(value.as_string(), out);
  } else if (value.is_array()) {
    out += '[';
    bool first = true;
    for (const Json& item : value.as_array()) {
      if (!first) out += ',';
      first = false;
      line(depth + 1);
      write(item, indent, depth + 1, out);
    }
    if (!first) line(depth);
    out += ']';
  } else {
    out += '{';
    bool first = true;
    for (const auto& [key, item] : value.as_object()) {
      if (!first) out += ',';
      first = false;
      line(depth + 1);
      write_string(key, out);
      out += indent < 0 ? ":" : ": ";
      write(item, indent, depth + 1, out);
    }
    if (!first) line(depth);
    out += '}';
  }
}

// Builds values from nlohmann's SAX events; never recurses, refuses duplicate keys and excessive depth.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(std::string_view source, std::string_view origin, const JsonLimits& limits) : source_(source), origin_(origin), limits_(limits) {}

  bool null() override { return add(Json()); }
  bool boolean(bool value) override { return add(Json(value)); }
  bool number_integer(number_integer_t value) override { return add(Json(static_cast<int64_t>(value))); }
  bool number_unsigned(number_unsigned_t value) override { return add(Json(static_cast<uint64_t>(value))); }
  bool number_float(number_float_t value, const string_t& written) override {
    if (!std::isfinite(value)) throw ConfigError(text(origin_, ": number ", written, " is out of range"));
    return add(Json(value));
  }
  bool string(string_t& value) override { return add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool key(string_t& value) override {
    if (!keys_.back().insert(value).second) throw ConfigError(text(origin_, ": duplicate key \"", value, "\""));
    pending_.back() = std::move(value);
    return true;
  }
  bool end_object() override { return finish(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return finish(); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& failure) override {
    size_t line = 1, column = 1;
    for (size_t i = 0; i + 1 < position && i < source_.size(); ++i) {
      column = source_[i] == '\n' ? 1 : column + 1;
      line += source_[i] == '\n';
    }
    constexpr int number_overflow = 406;  // of the parser's exceptions
    if (failure.id == number_overflow) throw ConfigError(text(origin_, ":", line, ":", column, ": the number is out of range"));
    std::string reason = failure.what();
    if (const size_t colon = reason.find(": "); colon != std::string::npos) reason = reason.substr(colon + 2);
    throw ConfigError(text(origin_, ":", line, ":", column, ": not valid JSON: ", reason));
  }

  Json take() { return std::move(root_); }

 private:
  bool add(Json value) {
    if (++count_ > limits_.maximum_values) throw ConfigError(text(origin_, ": more than ", limits_.maximum_values, " JSON values"));
    if (stack_.empty())
      root_ = std::move(value);
    else if (stack_.back().is_array())
      stack_.back().as_array().push_back(std::move(value));
    else
      stack_.back().as_object().emplace_back(std::move(pending_.back()), std::move(value));
    return true;
  }
  bool open(Json container) {
    if (static_cast<int>(stack_.size()) >= limits_.maximum_depth)
      throw ConfigError(text(origin_, ": nested deeper than ", limits_.maximum_depth, " levels"));
    stack_.push_back(std::move(container));
    pending_.emplace_back();
    keys_.emplace_back();
    return true;
  }
  bool finish() {
    Json done = std::move(stack_.back());
    stack_.pop_back();
    pending_.pop_back();
    keys_.pop_back();
    return add(std::move(done));
  }

  std::string_view source_;
  std::string origin_;
  JsonLimits limits_;
  int64_t count_ = 0;
  Json root_;
  std::vector<Json> stack_;
  std::vector<std::string> pending_;
  std::vector<std::unordered_set<std::string>> keys_;
};

}  // namespace

std::string Json::dump(int indent) const {
  std::string out;
  write(*this, indent, 0, out);
  return out;
}

Json parse_json(std::string_view source, std::string_view origin, const JsonLimits& limits) {
  if (source.substr(0, 3) == "\xEF\xBB\xBF") throw ConfigError(text(origin, ": starts with a byte order mark; remove it"));
  // The parser below takes a NUL byte for the end of the text, so anything could hide behind one.
  if (const size_t nul = source.find('\0'); nul != std::string_view::npos)
    throw ConfigError(text(origin, ": contains a NUL byte at offset ", nul));
  Builder builder(source, origin, limits);
  nlohmann::json::sax_parse(source.begin(), source.end(), &builder, nlohmann::json::input_format_t::json, true, false);
  return builder.take();
}

}  // namespace dmuon
