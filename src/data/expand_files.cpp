#include <glob.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "dmuon/core/error.h"
#include "dmuon/core/text.h"
#include "dmuon/data/token_source.h"

namespace dmuon {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> matches(const std::string& pattern) {
  std::error_code ignored;
  if (fs::exists(pattern, ignored)) return {pattern};  // also a name with glob characters in it
  glob_t found{};
  std::vector<std::string> out;
  // The library sorts by the locale's rules; the order of the data must not depend on them.
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) out.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  std::sort(out.begin(), out.end());
  return out;
}

// A pattern for files of the folder, of the first one's kind.
std::string example(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
    if (entry.is_regular_file(ignored) && !entry.path().filename().string().starts_with(".")) files.push_back(entry.path());
  const auto first = std::min_element(files.begin(), files.end());
  return (folder / ("*" + (first == files.end() ? ".txt" : first->extension().string()))).string();
}

}  // namespace

std::vector<std::string> expand_files(std::span<const std::string> patterns, std::string_view key) {
  std::vector<std::string> files;
  std::map<std::string, std::string> seen;  // what a name leads to -> the name
  for (const std::string& pattern : patterns) {
    const std::vector<std::string> found = matches(pattern);
    if (found.empty())
      throw DataError(text(key, ": no file matches \"", pattern, "\" (relative to ", fs::current_path().string(),
                           "); check the path (docs/data.md: scripts that fetch the data of configs/)"));
    for (const std::string& file : found) {
      if (!fs::is_regular_file(file))
        throw DataError(text(key, ": ", file, " is not a regular file; name the files themselves, for instance \"", example(file), "\""));
      const auto [first, inserted] = seen.emplace(fs::canonical(file).string(), file);
      if (!inserted)
        throw DataError(text(key, ": ", file, " is listed twice",
                             first->second == file ? "" : text(", it is the same file as ", first->second), "; remove one of them"));
      files.push_back(file);
    }
  }
  return files;
}

}  // namespace dmuon
