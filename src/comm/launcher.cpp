#include "comm/launcher.h"

#include <charconv>
#include <cstring>

#include "dmuon/core/text.h"

namespace dmuon {

Launcher find_launcher(const std::function<const char*(const char*)>& get) {
  Launcher launcher;
  const auto announce = [&](const char* name) {
    const char* value = get(name);
    int ranks = 0;
    if (value == nullptr || std::from_chars(value, value + std::strlen(value), ranks).ec != std::errc{} || ranks < 1) return false;
    launcher.present = true;
    launcher.ranks = ranks;
    launcher.variable = text(name, "=", value);
    return true;
  };
  if (announce("OMPI_COMM_WORLD_SIZE") || announce("PMI_SIZE")) return launcher;
  if (get("PMIX_RANK") != nullptr || get("PMI_RANK") != nullptr) {
    launcher.present = true;
    if (!announce("SLURM_STEP_NUM_TASKS")) announce("SLURM_NTASKS");
  }
  return launcher;
}

}  // namespace dmuon
