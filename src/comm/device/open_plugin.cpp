#include "dmuon/comm/device_communicator.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>

#include "comm/device/single_device.h"
#include "core/plugin_file.h"
#include "dmuon/backend/backend.h"
#include "dmuon/core/error.h"
#include "dmuon/core/text.h"

namespace dmuon {
namespace {

// Beside the library this code is in, unless the environment names another.
std::filesystem::path plugin_path() {
  if (const char* named = std::getenv("DMUON_NCCL_PLUGIN"); named != nullptr && *named != '\0') return named;
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&make_device_communicator), &info) == 0 || info.dli_fname == nullptr) return "libdmuon_nccl.so";
  return std::filesystem::path(info.dli_fname).parent_path() / "libdmuon_nccl.so";
}

const CommunicatorPlugin& open_plugin() {
  const std::filesystem::path path = plugin_path();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    throw DeviceError(text("several ranks on devices need the plug-in ", path.string(),
                           ", which is missing; build dmuon where NCCL's header and library are, or name the file in DMUON_NCCL_PLUGIN"));
  const PluginIdentity& table = open_plugin_file(
      path.string(), {"NCCL plug-in", "dmuon_communicator_entry", communicator_plugin_version, sizeof(CommunicatorPlugin)});
  return reinterpret_cast<const CommunicatorPlugin&>(table);
}

}  // namespace

std::unique_ptr<Communicator> make_device_communicator(Backend& backend, Communicator& world) {
  if (backend.name() != "cuda" || backend.shape_only()) return nullptr;
  if (world.size() == 1) return make_single_device_communicator(backend, world);
  // Where one rank lacks the plug-in, nobody waits for it.
  const CommunicatorPlugin* plugin = nullptr;
  std::string failure;
  try {
    plugin = &open_plugin();
  } catch (const DeviceError& error) {
    failure = error.what();
  }
  world.agree(failure.empty(), failure, ExitCode::device);
  return std::unique_ptr<Communicator>(plugin->make(backend, world));
}

}  // namespace dmuon
