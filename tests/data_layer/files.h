// Small data files for the tests, in a directory of their own that goes with the fixture.
#pragma once

#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "dmuon/core/text.h"

namespace dmuon::testing {

class Directory {
 public:
  Directory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "dmuon-data-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("cannot create a temporary directory");
    path_ = pattern;
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  std::string operator/(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

inline std::string write(const std::string& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

template <class Id>
std::string raw(const std::vector<Id>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)};
}

inline std::string llmc_header(int32_t magic, int32_t version, int32_t tokens) {
  std::string header(1024, '\0');
  const int32_t words[3] = {magic, version, tokens};
  std::memcpy(header.data(), words, sizeof words);
  return header;
}

inline std::string shard16(const std::vector<uint16_t>& ids) {
  return llmc_header(20240520, 1, static_cast<int32_t>(ids.size())) + raw(ids);
}
inline std::string shard32(const std::vector<uint32_t>& ids) {
  return llmc_header(20240801, 7, static_cast<int32_t>(ids.size())) + raw(ids);
}

// 0, 1, 2, ... as ids of the wanted type.
template <class Id>
std::vector<Id> counting(int64_t count, int64_t first = 0) {
  std::vector<Id> ids(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) ids[static_cast<size_t>(i)] = static_cast<Id>(first + i);
  return ids;
}

}  // namespace dmuon::testing
