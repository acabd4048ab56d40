// Reads one JSON object strictly: every error names the file and the path of the key, unknown keys are errors.
#pragma once

#include <string>
#include <vector>

#include "dmuon/core/json.h"

namespace dmuon {

class StrictObject {
 public:
  // `where` is "file: path", the path empty at the top. ConfigError when `json` is no object.
  StrictObject(const Json& json, std::string where);

  // ConfigError when the key is absent or has another type.
  const Json& at(const std::string& key);
  const Json* find(const std::string& key);  // null when absent
  std::string text_at(const std::string& key);
  std::string text_or(const std::string& key, const std::string& fallback);
  bool flag_or(const std::string& key, bool fallback);
  int64_t integer_at(const std::string& key, int64_t lowest, int64_t highest);
  int64_t integer_or(const std::string& key, int64_t lowest, int64_t highest, int64_t fallback);
  double number_at(const std::string& key, double lowest, double highest);
  const Json::Array& array_at(const std::string& key);
  // The object below `key`, or the element `index` of the array below it.
  StrictObject object_at(const std::string& key);
  StrictObject element(const std::string& key, size_t index);
  // {"value": number, "source": text}: a number that says where it comes from. The source must not be empty.
  double sourced_at(const std::string& key, double lowest, double highest);
  double sourced_or(const std::string& key, double lowest, double highest, double fallback);

  std::string path(const std::string& key) const;
  [[noreturn]] void fail(const std::string& key, const std::string& problem) const;
  // ConfigError when there is a key that was never asked for. Call it last.
  void finish() const;

 private:
  const Json& json_;
  std::string where_;
  std::vector<std::string> known_;
};

}  // namespace dmuon
