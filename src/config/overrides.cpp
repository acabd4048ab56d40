#include <algorithm>
#include <charconv>
#include <optional>

#include "config/reader.h"
#include "dmuon/config/key_table.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

std::vector<std::string> split(std::string_view path) {
  std::vector<std::string> parts;
  for (size_t start = 0; start <= path.size();) {
    const size_t end = std::min(path.find('.', start), path.size());
    parts.emplace_back(path.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

std::optional<size_t> index_of(const std::string& part) {
  size_t index = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), index);
  if (error != std::errc() || end != part.data() + part.size()) return std::nullopt;
  return index;
}

struct Target {
  bool known = false;
  const Key* key = nullptr;  // null: a section
};

// Looks a path up in the table; a section counts as known.
Target find_in(const std::vector<Key>& keys, const std::string& path) {
  for (const Key& key : keys) {
    if (key.path == path) return {true, &key};
    if (key.path.starts_with(path + ".")) return {true, nullptr};
  }
  return {};
}

Target find_target(const std::string& path) {
  for (const Key& key : configuration_keys()) {
    if (key.type == KeyType::rule && path.starts_with(key.path + ".")) return find_in(rule_keys(), path.substr(key.path.size() + 1));
    if (key.type == KeyType::rule_list && path.starts_with(key.path + ".")) {
      const std::string rest = path.substr(key.path.size() + 1);
      const size_t dot = rest.find('.');
      if (!index_of(rest.substr(0, dot))) return {};
      return dot == std::string::npos ? Target{true, nullptr} : find_in(rule_keys(), rest.substr(dot + 1));
    }
  }
  return find_in(configuration_keys(), path);
}

std::string nearest_path(const std::string& path) {
  std::vector<std::string> siblings, all;
  for (const Key& key : configuration_keys()) {
    all.push_back(key.path);
    if (key.type == KeyType::rule)
      for (const Key& rule_key : rule_keys()) all.push_back(key.path + "." + rule_key.path);
    if (key.type == KeyType::rule_list)
      for (const Key& rule_key : rule_keys()) all.push_back(key.path + ".0." + rule_key.path);
  }
  const std::string parent = path.substr(0, path.rfind('.') + 1);
  for (const auto& each : all)
    if (each.starts_with(parent) && each.find('.', parent.size()) == std::string::npos) siblings.push_back(each);
  if (!parent.empty() && !siblings.empty()) return unknown_key(path, siblings);
  const std::string close = nearest(path, all);
  return close.empty() ? unknown_key(path, siblings) : text("unknown key; did you mean \"", close, "\"?");
}

// A number in all its characters, but none that a double holds: 1e400.
bool is_too_large(const std::string& written) {
  double number = 0.0;
  const auto [end, error] = std::from_chars(written.data(), written.data() + written.size(), number);
  return error == std::errc::result_out_of_range && end == written.data() + written.size();
}

Json parse_value(const std::string& written, const Key* key) {
  Json value;
  try {
    value = parse_json(written, "--set");
  } catch (const ConfigError&) {
    value = Json(written);
  }
  if (!key) return value;
  const bool text_key = key->type == KeyType::string || key->type == KeyType::enumeration;
  if (text_key && !value.is_string()) return Json(written);
  if (key->type == KeyType::string_list && value.is_string()) return Json(Json::Array{value});
  return value;
}

// Walks to the parent of the last part, making objects on the way. Empty: done; otherwise what is in the way.
std::string put(Json& tree, const std::vector<std::string>& parts, Json value) {
  Json* node = &tree;
  std::string path;
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool last = i + 1 == parts.size();
    if (node->is_array()) {
      const auto index = index_of(parts[i]);
      const size_t length = node->as_array().size();
      if (!index || *index >= length)
        return text(path, " has ", length, length == 1 ? " element" : " elements", ", so there is no ", parts[i]);
      node = &node->as_array()[*index];
      if (last) *node = std::move(value);
    } else if (node->is_object()) {
      if (last) {
        node->set(parts[i], std::move(value));
      } else {
        if (!node->find(parts[i])) node->set(parts[i], path + "." + parts[i] == "optimizer.overrides" ? Json::array() : Json::object());
        node = node->find(parts[i]);
      }
    } else {
      return text(path, " is ", node->type_name(), " in the file, not an object");
    }
    path += (path.empty() ? "" : ".") + parts[i];
  }
  return "";
}

}  // namespace

std::set<std::string> apply_overrides(Json& tree, const std::vector<std::string>& overrides, std::vector<std::string>& errors) {
  std::set<std::string> paths;
  for (const std::string& written : overrides) {
    const size_t equals = written.find('=');
    if (equals == std::string::npos || equals == 0) {
      errors.push_back(text("--set ", written, ": expected key=value, such as training.steps=100"));
      continue;
    }
    const std::string path = written.substr(0, equals);
    const Target target = find_target(path);
    if (!target.known) {
      errors.push_back(text("--set ", path, ": ", nearest_path(path)));
    } else if (target.key && (target.key->type == KeyType::integer || target.key->type == KeyType::number) &&
               is_too_large(written.substr(equals + 1))) {
      errors.push_back(text("--set ", written, ": out of the range of numbers, expected ", describe_allowed(*target.key)));
    } else if (tree.is_object()) {
      const std::string obstacle = put(tree, split(path), parse_value(written.substr(equals + 1), target.key));
      if (obstacle.empty())
        paths.insert(path);
      else
        errors.push_back(text("--set ", path, ": ", obstacle));
    }
  }
  return paths;
}

}  // namespace dmuon
