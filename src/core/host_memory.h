// What memory the system still gives to this process, from what Linux writes about it in files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "dmuon/core/file.h"

namespace dmuon {

// Bytes; empty where the system names no limit or says nothing that can be read. Free swap counts as available.
struct AvailableMemory {
  std::optional<int64_t> machine;        // MemAvailable of /proc/meminfo: for all processes of the host together
  std::optional<int64_t> control_group;  // the tightest memory limit among this process's control groups, of version 1 or 2, less what
                                         // the group holds; its file cache counts as free
  std::string control_group_path;        // the directory of that group; all processes in it share the limit
  std::optional<int64_t> process;        // RLIMIT_AS (ulimit -v) less the addresses that this process has mapped
};

// `root`: the directory that holds proc and sys. Never throws for what the files hold: what is missing or makes no sense is no limit.
AvailableMemory available_memory(const Path& root = "/");

}  // namespace dmuon
