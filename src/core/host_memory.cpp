#include "core/host_memory.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <limits>
#include <sstream>
#include <string_view>

namespace dmuon {
namespace {

// Files of these trees have no size before they are read.
std::string content_of(const Path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (file) content << file.rdbuf();
  return content.str();
}

// The number at the start, which a blank or the end follows; "max", a sign or more than 63 bits are none.
std::optional<int64_t> number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view rest = text.substr(static_cast<size_t>(end - text.data()));
  if (error != std::errc() || value < 0 || (!rest.empty() && rest.find_first_of(" \t\n") != 0)) return std::nullopt;
  return value;
}

// The number of the line that begins with `name`.
std::optional<int64_t> field(std::string_view content, std::string_view name) {
  for (size_t begin = 0; begin < content.size();) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string_view line = content.substr(begin, end - begin);
    if (line.starts_with(name)) return number(line.substr(name.size()));
    begin = end + 1;
  }
  return std::nullopt;
}

std::optional<int64_t> kilobytes(std::string_view content, std::string_view name) {
  const std::optional<int64_t> value = field(content, name);
  if (!value || *value > std::numeric_limits<int64_t>::max() / 1024) return std::nullopt;
  return *value * 1024;
}

int64_t saturating_sum(int64_t a, int64_t b) {
  return a > std::numeric_limits<int64_t>::max() - b ? std::numeric_limits<int64_t>::max() : a + b;
}

int64_t left_of(int64_t limit, int64_t used) { return std::max<int64_t>(0, limit - used); }

// How a version of control groups names things.
struct Version {
  std::string_view line;  // of /proc/self/cgroup, before the group's path
  const char* mount;      // below sys/fs/cgroup
  const char *limit, *usage, *swap_limit, *swap_usage, *inactive_file, *active_file;
};
constexpr Version versions[] = {
    {"0::", "", "memory.max", "memory.current", "memory.swap.max", "memory.swap.current", "inactive_file ", "active_file "},
    {":memory:", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "", "", "total_inactive_file ", "total_active_file "},
};

std::optional<int64_t> left_in_group(const Path& directory, const Version& version, int64_t swap) {
  const std::optional<int64_t> limit = number(content_of(directory / version.limit));
  if (!limit) return std::nullopt;
  const std::string statistics = content_of(directory / "memory.stat");
  const int64_t files =
      saturating_sum(field(statistics, version.inactive_file).value_or(0), field(statistics, version.active_file).value_or(0));
  const int64_t held = std::max<int64_t>(0, number(content_of(directory / version.usage)).value_or(0) - files);
  if (version.swap_limit[0] != '\0')
    if (const auto most = number(content_of(directory / version.swap_limit)))
      swap = std::min(swap, left_of(*most, number(content_of(directory / version.swap_usage)).value_or(0)));
  return saturating_sum(left_of(*limit, held), swap);
}

// The path of this process's group in the tree of `version`, relative to the mount. In a container the tree may be another one than
// the path tells of: its root is then the container's group.
std::string group_path(std::string_view groups, const Version& version) {
  for (size_t begin = 0; begin < groups.size();) {
    const size_t end = std::min(groups.find('\n', begin), groups.size());
    const std::string_view line = groups.substr(begin, end - begin);
    begin = end + 1;
    const size_t at = version.line.front() == ':' ? line.find(version.line) : line.starts_with(version.line) ? 0 : std::string_view::npos;
    if (at == std::string_view::npos) continue;
    std::string path(line.substr(at + version.line.size()));
    path.erase(0, std::min(path.find_first_not_of('/'), path.size()));
    return path.find("..") == std::string::npos ? path : std::string();
  }
  return {};
}

}  // namespace

AvailableMemory available_memory(const Path& root) {
  AvailableMemory available;
  const std::string meminfo = content_of(root / "proc/meminfo");
  const int64_t swap = kilobytes(meminfo, "SwapFree:").value_or(0);
  if (const auto free = kilobytes(meminfo, "MemAvailable:")) available.machine = saturating_sum(*free, swap);

  const std::string groups = content_of(root / "proc/self/cgroup");
  for (const Version& version : versions) {
    const Path mount = root / "sys/fs/cgroup" / version.mount;
    for (Path path = group_path(groups, version);; path = path.parent_path()) {
      const Path directory = path.empty() ? mount : mount / path;
      const std::optional<int64_t> left = left_in_group(directory, version, swap);
      if (left && (!available.control_group || *left < *available.control_group)) {
        available.control_group = left;
        available.control_group_path = directory.string();
      }
      if (path.empty()) break;
    }
  }

  const std::optional<int64_t> addresses = field(content_of(root / "proc/self/limits"), "Max address space");
  const std::optional<int64_t> pages = number(content_of(root / "proc/self/statm"));
  if (addresses) available.process = left_of(*addresses, pages.value_or(0) * sysconf(_SC_PAGESIZE));
  return available;
}

}  // namespace dmuon
